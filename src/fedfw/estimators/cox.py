"""Cox's regression of survival times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from fedfw.estimators.base import Array, FederatedEstimator, Scales
from fedfw.estimators.fitting import Sees
from fedfw.estimators.likelihoods import Likelihood
from fedfw.estimators.model import FittedModel
from fedfw.estimators.partial_likelihood import Baseline, Cox
from fedfw.estimators.private import refuse_exact_sums
from fedfw.estimators.sites import Sites, as_sites
from fedfw.estimators.statement import Bounds
from fedfw.problems.survival import concordance


class CoxRegression(FederatedEstimator):
    """Cox's proportional hazards model across clients, each with a baseline hazard of its own.

    Clients are strata: a client compares its own patients with each other and sends sums. y has two
    columns, event (1 or 0) and time, or is scikit-survival's structured array. There are no sample
    weights and no intercept. Differential privacy is refused, because the loss of a client is a
    function of all its patients together: use `PoissonRegression` on person-periods.

    Parameters
    ----------
    constraint : set, str or None
        The set of the coefficients of standardised columns, such as ``"l1:8"``; None, the default,
        means none.
    ties : {"efron", "breslow"}
        How patients with an event at the same time are treated.

    The other parameters are those of `fedfw.estimators.FederatedEstimator`.

    Attributes
    ----------
    coef_ : array
        (p,), on the original scale: logarithms of hazard ratios.
    strata_ : dict
        The baseline hazard of each client with events, by its name. Its times are those of single
        patients: in a deployment it stays with the client.
    selected_, certificate_, bytes_, inference_
        As of `LinearRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators import CoxRegression
    >>> X = np.array([[0.0], [1.0], [0.0], [1.0], [1.0], [0.0]])
    >>> y = np.array([[1, 9.0], [1, 4.0], [1, 5.0], [1, 3.0], [1, 8.0], [0, 9.0]])
    >>> fit = CoxRegression().fit(X, y, groups=[0, 0, 0, 1, 1, 1])
    >>> fit.coef_[0] > 0, round(fit.score(X, y, groups=[0, 0, 0, 1, 1, 1]), 2)
    (np.True_, 0.83)
    """

    target = "survival"
    deployed = "cox"

    def __init__(
        self,
        constraint: Any = None,
        *,
        ties: str = "efron",
        bounds: Bounds | None = None,
        factors: Mapping[str, Sequence[str]] | None = None,
        unpenalised: Sequence[str] = (),
        monotone: Mapping[str, Sequence[str]] | None = None,
        standardize: bool = True,
        scales: Scales | None = None,
        algorithm: Any = "auto",
        sees: Sees = "gradients",
        tol: float | None = None,
        max_rounds: int | None = None,
        covariance: str = "model",
        infer: str | None = None,
        privacy: Any = None,
        random_state: int = 0,
    ) -> None:
        super().__init__(
            constraint,
            bounds=bounds,
            factors=factors,
            unpenalised=unpenalised,
            monotone=monotone,
            standardize=standardize,
            scales=scales,
            algorithm=algorithm,
            sees=sees,
            tol=tol,
            max_rounds=max_rounds,
            covariance=covariance,
            infer=infer,
            privacy=privacy,
            random_state=random_state,
        )
        self.ties = ties

    @classmethod
    def _get_param_names(cls) -> list[str]:
        names: list[str] = super()._get_param_names()
        return [name for name in names if name != "constrain_intercept"]

    def _validate(self, X: Any, y: Any) -> tuple[Array, Array]:
        return self._validate_rows(X), np.asarray(y)

    def _likelihood(self, sites: Sites) -> Likelihood:
        if self.privacy is not None:
            refuse_exact_sums(sites, Cox(self.ties))  # type: ignore[arg-type]
        if any(site.weights is not None for site in sites):
            raise ValueError(
                "sample_weight is given, expected none: Cox's model has no weights here"
            )
        return Cox(self.ties)  # type: ignore[arg-type]

    def _fit_sites(self, sites: Sites, model: FittedModel | None = None) -> Self:
        super()._fit_sites(sites, model)
        likelihood = Cox(self.ties)  # type: ignore[arg-type]
        theta = torch.from_numpy(self.coef_)
        self.strata_ = {
            site.name: likelihood.baseline(site, theta)
            for site in sites
            if bool((site.y[:, 0] > 0).any())
        }
        return self

    def _set_coefficients(self, model: Any) -> None:
        self.coef_ = model.coef[0].numpy()

    def predict(self, X: Any) -> Array:
        """Return the logarithms of relative risks (m,), for patients of any site."""
        return np.asarray(self._columns(X).numpy() @ self.coef_)

    def predict_survival(self, X: Any, times: Any, site: str) -> Array:
        """Return the probabilities (m, T) of no event up to times (T,), at a site of the fit.

        Parameters
        ----------
        X : array
            (m, p).
        times : array
            (T,).
        site : str
            The name of a site: a group's label as text, or "site 0" for the first pair of a list.
        """
        risks = self.predict(X)
        if site not in self.strata_:
            raise ValueError(
                f"site={site!r} has no baseline hazard here, expected one of "
                f"{', '.join(self.strata_) or 'none'}: at other sites `predict` gives relative "
                "risks alone, because the model has no hazard of theirs"
            )
        baseline: Baseline = self.strata_[site]
        cumulative = baseline.cumulative_at(torch.as_tensor(times, dtype=torch.float64)).numpy()
        return np.asarray(np.exp(-np.exp(risks)[:, None] * cumulative[None, :]))

    def score(self, X: Any, y: Any = None, groups: Any = None) -> float:
        """Return Harrell's concordance over the pairs of patients within a site.

        Ties of scores count one half; a tie of an event and a censored patient is a pair. Without
        ``groups`` all rows are one site.
        """
        check_is_fitted(self)
        sites = as_sites(X, y, groups, target="survival")
        right = 0.0
        pairs = 0
        for site in sites:
            scores = site.X @ torch.from_numpy(self.coef_)
            share, count = concordance(scores, site.y), comparable_pairs(site.y)
            if share is not None:
                right += share * count
                pairs += count
        if pairs == 0:
            raise ValueError(
                "no pair of patients is comparable, expected an event before another time"
            )
        return right / pairs


def comparable_pairs(targets: torch.Tensor) -> int:
    """Return the number of pairs of patients that `concordance` compares, for pairs (event, time)
    (m, 2).
    """
    event, time = targets.unbind(1)
    first = event.nonzero().flatten()
    after = (time[None, :] > time[first, None]) | (
        (time[None, :] == time[first, None]) & (event[None, :] == 0)
    )
    return int(after.sum())
