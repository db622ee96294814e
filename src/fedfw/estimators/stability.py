r"""Stability selection: variables selected again and again on halves of each client's rows.

Every client divides its rows at random into two halves of equal size, B times; for each half of all
clients a model is selected. With the share Pi_k of the 2 B models that variable k is in, those with
Pi_k >= tau are selected in the end. Let q be the mean number of variables of a model and p that of
all variables. Then

- (Meinshausen and Buehlmann 2010, theorem 1) the expected number of noise variables among them is
  at most q^2 / ((2 tau - 1) p), *if* noise variables are exchangeable and the method is not worse
  than random guessing;
- (Shah and Samworth 2013, theorem 1) without assumptions, the expected number of those among them
  whose probability to be selected on a half is at most theta is at most theta / (2 tau - 1) times
  the expected number of such variables in one model, and that is at most q. With theta = q / p the
  number is that of the first bound, about other variables;
- (their theorem 2) if the shares of pairs of halves that *both* select such a variable have
  unimodal distributions, and theta <= 1 / sqrt(3), it is at most C(tau, B) theta q
  (`unimodal_factor`).

Where a client's rows are independent draws, the halves of all clients together are two independent
samples of the same distribution, whatever the differences between clients, so these theorems hold
for halves within clients. q is not known; its estimate is the mean over the 2 B models.
"""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils.validation import check_is_fitted

from fedfw.estimators.base import FederatedEstimator
from fedfw.estimators.fitting import Bytes
from fedfw.estimators.inference import as_table
from fedfw.estimators.model import fit_model
from fedfw.estimators.radii import refuse_privacy
from fedfw.estimators.sites import Sites
from fedfw.report.plots import save_figure

Array = npt.NDArray[Any]
Assumption = Literal["none", "unimodal"]

_SHOWN = 30


class StabilitySelection(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Stability selection with complementary halves of each client's rows.

    Parameters
    ----------
    estimator : FederatedEstimator
        What selects, at its own radius: the larger the radius, the more variables a model has and
        the weaker the bounds are.
    pairs : int
        B, the number of pairs of halves; twice as many models are fitted.
    threshold : float
        tau, above 1/2: the share of the models from which a variable is selected.
    false_selections : float, optional
        In place of ``threshold``: the smallest one whose bound is at most this number is taken.
    assumption : {"none", "unimodal"}
        Which of Shah and Samworth's bounds ``false_selections`` is for.
    random_state : int
        Fixes the halves.

    Attributes
    ----------
    frequencies_ : array
        (p,), the share of the models that each variable is in.
    selected_ : array
        (p,), whether it is at least the threshold.
    threshold_ : float
    mean_selected_ : float
        q, the mean number of variables of a model.
    bounds_ : dict
        At the threshold: "meinshausen_buehlmann", of the expected number of noise variables;
        "shah_samworth" and "unimodal", of variables whose probability is at most q / p. A value is
        None where the theorem does not hold.
    table_ : table
        ``frequency`` and ``selected`` of each variable, the most frequent first.
    bytes_ : Bytes
        What all clients sent for all fits.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators import LinearRegression, StabilitySelection
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((120, 10))
    >>> y = X[:, 0] - X[:, 3] + 0.5 * rng.standard_normal(120)
    >>> selection = StabilitySelection(LinearRegression("l1:1.5"), pairs=4)
    >>> found = selection.fit(X, y, np.arange(120) % 3)
    >>> found.selected_.nonzero()[0], found.threshold_
    (array([0, 3]), 0.75)
    """

    def __init__(
        self,
        estimator: Any,
        *,
        pairs: int = 50,
        threshold: float = 0.75,
        false_selections: float | None = None,
        assumption: Assumption = "none",
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.pairs = pairs
        self.threshold = threshold
        self.false_selections = false_selections
        self.assumption = assumption
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
    ) -> Self:
        """Fit a model to each half, and select the variables that many models have.

        The arguments are those of the estimator's ``fit``.
        """
        refuse_privacy(self.estimator, "stability selection")
        self._validate()
        reader: FederatedEstimator = clone(self.estimator)
        sites = reader._read(X, y, groups, sample_weight, offset)
        settings = reader._settings()
        if settings.statement.is_empty:
            raise ValueError(
                "the estimator has no constraint and selects all variables, expected one such as "
                'constraint="l1:8"'
            )
        likelihood = reader._likelihood(sites)
        generator = torch.Generator().manual_seed(self.random_state or 0)
        counts = torch.zeros(sites.p, dtype=torch.float64)
        sent = Bytes()
        for _ in range(self.pairs):
            for half in complementary_halves(sites, generator):
                model = fit_model(half, likelihood, settings)
                counts += model.selected
                sent = sent + model.bytes
        self._take(counts.numpy() / (2 * self.pairs), sites)
        self.n_features_in_ = reader.n_features_in_
        if hasattr(reader, "feature_names_in_"):
            self.feature_names_in_ = reader.feature_names_in_
        self.bytes_ = sent
        return self

    def _validate(self) -> None:
        """Refuse parameters that have no bound."""
        if not isinstance(self.pairs, int | np.integer) or self.pairs < 1:
            raise ValueError(f"pairs={self.pairs!r}, expected a whole number of at least 1")
        if not 0.5 < self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold!r}, expected a share above 1/2, at most 1")
        if self.assumption not in ("none", "unimodal"):
            raise ValueError(f"assumption={self.assumption!r}, expected none or unimodal")
        if self.false_selections is not None and not self.false_selections > 0:
            raise ValueError(
                f"false_selections={self.false_selections!r}, expected a number above 0"
            )

    def _take(self, frequencies: Array, sites: Sites) -> None:
        """Set the fitted attributes of frequencies (p,)."""
        p = len(frequencies)
        self.frequencies_ = frequencies
        self.mean_selected_ = q = float(frequencies.sum())
        self.threshold_ = self.threshold
        if self.false_selections is not None:
            self.threshold_ = threshold_for(
                self.false_selections, q, p, self.pairs, self.assumption
            )
        self.selected_ = frequencies >= self.threshold_ - 1e-12
        self.bounds_ = {
            "meinshausen_buehlmann": worst_case_bound(q, p, self.threshold_),
            "shah_samworth": worst_case_bound(q, p, self.threshold_),
            "unimodal": unimodal_bound(q, p, self.threshold_, self.pairs),
        }
        order = np.argsort(-frequencies, kind="stable")
        self._names = [sites.names[j] for j in order]
        columns = {"frequency": frequencies[order], "selected": self.selected_[order]}
        self.table_ = as_table(columns, self._names)

    def get_support(self) -> Array:
        """Return which variables are selected, (p,)."""
        check_is_fitted(self)
        return self.selected_

    def transform(self, X: Any) -> Any:
        """Return the columns of the selected variables."""
        check_is_fitted(self)
        chosen = self.selected_.nonzero()[0]
        return X.iloc[:, chosen] if hasattr(X, "iloc") else np.asarray(X)[:, chosen]

    def plot(self, file: str | FilePath | None = None) -> Figure:
        """Draw the frequencies of the variables that are selected most often, with the threshold,
        and save the picture where a file is given (.png, .svg or .pdf).
        """
        check_is_fitted(self)
        shown = np.sort(self.frequencies_)[::-1][:_SHOWN]
        figure = Figure(figsize=(7, 1 + 0.25 * len(shown)), layout="constrained")
        axis = figure.subplots()
        colors = ["C0" if share >= self.threshold_ - 1e-12 else "0.7" for share in shown]
        axis.barh(range(len(shown)), shown, color=colors)
        axis.axvline(self.threshold_, color="C3", ls="--", lw=1)
        axis.set_yticks(range(len(shown)), self._names[: len(shown)])
        axis.invert_yaxis()
        axis.set(xlim=(0, 1), xlabel=f"share of {2 * self.pairs} models")
        if file is not None:
            save_figure(figure, FilePath(file))
        return figure


def complementary_halves(sites: Sites, generator: torch.Generator) -> tuple[Sites, Sites]:
    """Return two samples without a common row: of m rows a client draws floor(m / 2) for each."""
    first = []
    second = []
    for site in sites:
        size = len(site) // 2
        if size == 0:
            raise ValueError(
                f"{site.name} has {len(site)} row, halves need two or more at every client: leave "
                "the site out"
            )
        order = torch.randperm(len(site), generator=generator)
        first.append(site.rows(order[:size].sort().values))
        second.append(site.rows(order[size : 2 * size].sort().values))
    return _of(sites, first), _of(sites, second)


def _of(sites: Sites, parts: list[Any]) -> Sites:
    """Return the parts as sites of the same study."""
    return Sites(tuple(parts), sites.names, sites.named, sites.classes)


def worst_case_bound(q: float, p: int, threshold: float) -> float:
    """Return q^2 / ((2 tau - 1) p): Meinshausen and Buehlmann's bound, and, with theta = q / p,
    that of Shah and Samworth's theorem 1.

    Examples
    --------
    >>> worst_case_bound(10, 1000, 0.75)
    0.2
    """
    return q**2 / ((2 * threshold - 1) * p)


def unimodal_factor(threshold: float, pairs: int, theta: float) -> float | None:
    """Return C(tau, B) of Shah and Samworth's theorem 2; None where it does not hold.

    Examples
    --------
    >>> round(unimodal_factor(0.8, 50, 20 / 88), 4)
    0.8235
    """
    lowest = min(0.5 + theta**2, 0.5 + 1 / (2 * pairs) + 0.75 * theta**2)
    if theta > 1 / 3**0.5 or threshold <= lowest:
        return None
    if threshold <= 0.75:
        return 1 / (2 * (2 * threshold - 1 - 1 / (2 * pairs)))
    return 4 * (1 - threshold + 1 / (2 * pairs)) / (1 + 1 / pairs)


def unimodal_bound(q: float, p: int, threshold: float, pairs: int) -> float | None:
    """Return the bound of Shah and Samworth's theorem 2 with theta = q / p; None where the theorem
    does not hold. Thresholds between multiples of 1 / (2 B) count as the next one.

    Examples
    --------
    >>> round(unimodal_bound(20, 88, 0.8, 50), 6)
    3.743316
    """
    attained = np.ceil(round(2 * pairs * threshold, 9)) / (2 * pairs)
    factor = unimodal_factor(float(attained), pairs, q / p)
    return None if factor is None else factor * q**2 / p


def threshold_for(
    false_selections: float, q: float, p: int, pairs: int, assumption: Assumption
) -> float:
    """Return the smallest share above 1/2 that models can have whose bound is small enough."""
    least: list[float] = []
    for count in range(pairs + 1, 2 * pairs + 1):
        threshold = count / (2 * pairs)
        bound: float | None = worst_case_bound(q, p, threshold)
        if assumption == "unimodal":
            bound = unimodal_bound(q, p, threshold, pairs)
        if bound is not None and bound <= false_selections:
            return threshold
        if bound is not None:
            least.append(bound)
    shown = f"{min(least):.3g}" if least else "none"
    raise ValueError(
        f"false_selections={false_selections}: with {q:.1f} of {p} variables in a model the least "
        f"bound is {shown}, at threshold 1; expected a smaller radius, whose models have fewer "
        "variables"
    )
