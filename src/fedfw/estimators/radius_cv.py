"""The radius of the constraint by cross-validation within clients.

Every client divides its own rows into folds. For each fold a path is fitted to the other rows of
all clients, and each client sends sums of scores of its held-out rows, one for every radius. Scores
are

- the deviance: twice the difference of the log-likelihood of a perfect fit and that of the model,
  a row (Gaussian: the mean squared error); Cox: minus twice the log partial likelihood of the
  held-out rows among each other, within strata, an event;
- the concordance, for Cox: the share of comparable pairs of held-out rows of one client that are in
  the right order. Equal predictions count one half; equal times are comparable if one of the two
  patients was censored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any, Literal, Self

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fedfw.estimators.after_selection import halves
from fedfw.estimators.base import FederatedEstimator
from fedfw.estimators.cox import comparable_pairs
from fedfw.estimators.fitting import Bytes
from fedfw.estimators.inference import as_table
from fedfw.estimators.likelihoods import Likelihood, Logistic, Multinomial, Poisson
from fedfw.estimators.model import FittedModel, Settings, prepare
from fedfw.estimators.partial_likelihood import Cox
from fedfw.estimators.path import fit_radii
from fedfw.estimators.radii import (
    Array,
    refuse_privacy,
    search_radii,
    set_of_radius,
    sorted_radii,
    with_radius,
)
from fedfw.estimators.sites import Site, Sites
from fedfw.problems.survival import concordance
from fedfw.report.plots import save_figure

Scoring = Literal["deviance", "concordance"]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Two sums, which a client sends of its held-out rows for one model."""

    score: float
    """The deviance, or the number of pairs in the right order."""
    count: float
    """The divisor of the sum: weights, events, or pairs."""


def _has(name: str) -> Any:
    """Return a check of whether the estimator has a method."""
    return lambda search: hasattr(search.estimator, name)


class RadiusCV(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator whose radius is chosen by cross-validation within clients.

    Parameters
    ----------
    estimator : FederatedEstimator
        Its constraint says which set has the radii, such as ``"l1:1"``; None is an l1 ball. With
        ``infer="split"`` the half of each client that selects chooses the radius, too.
    radii : sequence of float, optional
        None takes the grid of `default_radii`, of all rows.
    folds : int
        Of each client's rows. They are balanced over classes, or over events and censored rows; a
        client with fewer rows than folds has none in some of them.
    one_standard_error : bool
        Whether the smallest radius is taken whose mean score is within one standard error, over the
        folds, of the best one's; else the best one.
    scoring : {"deviance", "concordance"}
        What is compared; concordance for Cox alone.
    random_state : int
        Fixes the folds.

    Attributes
    ----------
    best_radius_ : float
    scores_ : table
        A row a radius: ``radius``, ``mean``, ``se`` and one column a fold.
    estimator_ : FederatedEstimator
        Fitted to all rows at the best radius. Its fitted attributes, such as ``coef_``, are
        attributes of this object, too.
    bytes_ : Bytes
        What all clients sent for all fits and scores.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators import LinearRegression, RadiusCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((90, 4))
    >>> y = X @ [1.0, 0.5, 0.0, 0.0] + 0.3 * rng.standard_normal(90)
    >>> search = RadiusCV(LinearRegression(), radii=[0.5, 1.0, 1.25, 2.0])
    >>> found = search.fit(X, y, np.arange(90) % 3)
    >>> found.best_radius_, found.selected_
    (1.25, array([ True,  True, False, False]))
    """

    def __init__(
        self,
        estimator: Any,
        radii: Sequence[float] | Array | None = None,
        folds: int = 5,
        one_standard_error: bool = True,
        *,
        scoring: Scoring = "deviance",
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.radii = radii
        self.folds = folds
        self.one_standard_error = one_standard_error
        self.scoring = scoring
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
    ) -> Self:
        """Choose the radius, and fit the estimator to all rows with it.

        The arguments are those of the estimator's ``fit``.
        """
        refuse_privacy(self.estimator, "RadiusCV")
        best: FederatedEstimator = clone(self.estimator)
        sites = best._read(X, y, groups, sample_weight, offset)
        settings = with_radius(best._settings(), 1.0)
        likelihood = best._likelihood(sites)
        self._validate(likelihood)
        used = halves(sites, settings.seed)[0] if best.infer == "split" else sites
        sent = Bytes()
        if self.radii is None:
            grid, sent = search_radii(prepare(used, likelihood, settings), settings, 20)
        else:
            grid = sorted_radii(self.radii)
        seed = 0 if self.random_state is None else self.random_state
        numbers = fold_numbers(used, likelihood, self.folds, seed)
        scores = np.empty((len(grid), self.folds))
        for fold in range(self.folds):
            scores[:, fold], spent = score_fold(
                used, numbers, fold, likelihood, settings, grid, self.scoring
            )
            sent = sent + spent
        mean = scores.mean(1)
        error = scores.std(1, ddof=1) / self.folds**0.5
        larger = self.scoring == "concordance"
        self.best_index_ = choose(mean, error, larger, self.one_standard_error)
        self.best_radius_ = float(grid[self.best_index_])
        columns = {"radius": grid, "mean": mean, "se": error}
        columns |= {f"fold {k}": scores[:, k] for k in range(self.folds)}
        self.scores_ = as_table(columns, [f"{radius:.4g}" for radius in grid])
        self._curve = (grid, mean, error)
        best.set_params(constraint=set_of_radius(best.constraint, self.best_radius_))
        self.estimator_ = best._fit_sites(sites)
        self.bytes_ = sent + best.bytes_
        return self

    def _validate(self, likelihood: Likelihood) -> None:
        """Refuse parameters that make no sense for the model."""
        if not isinstance(self.folds, int | np.integer) or self.folds < 2:
            raise ValueError(f"folds={self.folds!r}, expected a whole number of at least 2")
        if self.scoring not in ("deviance", "concordance"):
            raise ValueError(f"scoring={self.scoring!r}, expected deviance or concordance")
        if self.scoring == "concordance" and not isinstance(likelihood, Cox):
            raise ValueError("scoring='concordance' is for survival times, expected deviance")

    def __getattr__(self, name: str) -> Any:
        """Return a fitted attribute of the chosen estimator."""
        fitted = self.__dict__.get("estimator_")
        if fitted is None or name.startswith("_") or not name.endswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(fitted, name)

    def predict(self, X: Any, **options: Any) -> Array:
        """Return the predictions of the chosen estimator."""
        return np.asarray(self._fitted.predict(X, **options))

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities (m, K) of the classes."""
        return np.asarray(self._fitted.predict_proba(X))

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Array:
        """Return the linear predictors."""
        return np.asarray(self._fitted.decision_function(X))

    @available_if(_has("predict_survival"))  # type: ignore[untyped-decorator]
    def predict_survival(self, X: Any, times: Any, site: str) -> Array:
        """Return the probabilities (m, T) of no event up to times (T,), at a site of the fit."""
        return np.asarray(self._fitted.predict_survival(X, times, site))

    def score(self, X: Any, y: Any = None, **options: Any) -> float:
        """Return the score of the chosen estimator."""
        return float(self._fitted.score(X, y, **options))

    @property
    def _fitted(self) -> Any:
        """Return the chosen estimator."""
        check_is_fitted(self, "estimator_")
        return self.estimator_

    def plot(self, file: str | FilePath | None = None) -> Figure:
        """Draw the mean scores with their standard errors against the radius, and save the picture
        where a file is given (.png, .svg or .pdf).
        """
        assert self._fitted is not None
        grid, mean, error = self._curve
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axis = figure.subplots()
        axis.errorbar(grid, mean, error, marker="o", ms=4, lw=1, capsize=3)
        axis.axvline(self.best_radius_, color="C3", ls="--", lw=1, label="chosen radius")
        axis.set(xscale="log", xlabel="radius", ylabel=f"{self.scoring} of held-out rows")
        axis.legend()
        if file is not None:
            save_figure(figure, FilePath(file))
        return figure

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        own = get_tags(self.estimator)
        tags.estimator_type = own.estimator_type
        tags.classifier_tags = own.classifier_tags
        tags.regressor_tags = own.regressor_tags
        tags.target_tags = own.target_tags
        tags.input_tags = own.input_tags
        return tags


def fold_numbers(sites: Sites, likelihood: Likelihood, folds: int, seed: int) -> list[Tensor]:
    """Return, for each site, the fold of each of its rows (m,), drawn from the seed."""
    generator = torch.Generator().manual_seed(seed)
    numbers = [_deal(site, likelihood, folds, generator) for site in sites]
    counts = torch.cat(numbers).bincount(minlength=folds)
    if bool((counts == 0).any()):
        raise ValueError(
            f"folds={folds} for {sites.n} rows of {len(sites)} clients leaves a fold without rows, "
            "expected fewer folds"
        )
    return numbers


def _deal(site: Site, likelihood: Likelihood, folds: int, generator: torch.Generator) -> Tensor:
    """Return the fold of each row (m,): rows in random order, one class after the other, are dealt
    to the folds in turn, from a random one on.
    """
    order = torch.randperm(len(site), generator=generator)
    if isinstance(likelihood, Cox):
        order = order[site.y[order, 0].argsort(stable=True)]
    elif isinstance(likelihood, Logistic | Multinomial):
        order = order[site.y[order].argsort(stable=True)]
    first = int(torch.randint(folds, (1,), generator=generator))
    numbers = torch.empty(len(site), dtype=torch.long)
    numbers[order] = (torch.arange(len(site)) + first) % folds
    return numbers


def score_fold(
    sites: Sites,
    numbers: list[Tensor],
    fold: int,
    likelihood: Likelihood,
    settings: Settings,
    radii: Array,
    scoring: Scoring,
) -> tuple[Array, Bytes]:
    """Return the scores (R,) of the rows of one fold by fits to the others, and the bytes sent."""
    train = _with_rows(sites, [own != fold for own in numbers])
    test = _with_rows(sites, [own == fold for own in numbers])
    models = fit_radii(prepare(train, likelihood, settings), settings, radii)
    scores = []
    for model in models:
        sums = [score_rows(site, likelihood, model, scoring) for site in test]
        count = sum(part.count for part in sums)
        if count == 0:
            needed = "comparable pair" if scoring == "concordance" else "weight or event"
            raise ValueError(f"fold {fold} has no {needed}, expected fewer folds")
        scores.append(sum(part.score for part in sums) / count)
    messages = Bytes.of_exchanges(8 * 2 * len(radii) * len(test), 1, len(test))
    return np.array(scores), sum((model.bytes for model in models), messages)


def _with_rows(sites: Sites, masks: list[Tensor]) -> Sites:
    """Return the sites with these rows, masks (m,), without sites that have none of them."""
    kept = [site.rows(mask) for site, mask in zip(sites, masks, strict=True) if bool(mask.any())]
    return dataclasses.replace(sites, sites=tuple(kept))


def score_rows(site: Site, likelihood: Likelihood, model: FittedModel, scoring: Scoring) -> HeldOut:
    """Return a client's sums for its held-out rows; nothing of a single row is in them but where
    there is one row.
    """
    theta = torch.cat([model.coef.flatten(), model.intercept])
    if scoring == "concordance":
        share = concordance(site.X @ theta, site.y)
        pairs = comparable_pairs(site.y)
        return HeldOut(0.0 if share is None else share * pairs, pairs)
    sums = likelihood.sums(site, theta)
    deviance = 2 * (sums.value - _perfect(site, likelihood))
    count = float(site.y[:, 0].sum()) if isinstance(likelihood, Cox) else sums.weight
    return HeldOut(deviance, count)


def _perfect(site: Site, likelihood: Likelihood) -> float:
    """Return the negative log-likelihood of predictions that are the targets, as summed."""
    if not isinstance(likelihood, Poisson):
        return 0.0
    y = site.y
    return float(site.row_weights @ (y - torch.xlogy(y, y) + torch.lgamma(y + 1)))


def choose(mean: Array, error: Array, larger_is_better: bool, one_standard_error: bool) -> int:
    """Return the place of the chosen radius among rising ones.

    Parameters
    ----------
    mean, error : array
        (R,): the mean score over the folds and its standard error.
    larger_is_better : bool
        As for the concordance.
    one_standard_error : bool
        Whether the smallest radius is taken that is within one standard error of the best one, and
        not the best; of equally good ones the smallest is the best.
    """
    losses = -mean if larger_is_better else mean
    best = int(losses.argmin())
    if not one_standard_error:
        return best
    return int(np.flatnonzero(losses <= losses[best] + error[best])[0])
