"""Poisson regression."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from fedfw.estimators.base import Array, FederatedEstimator
from fedfw.estimators.likelihoods import Likelihood, Poisson
from fedfw.estimators.sites import Sites


class PoissonRegression(RegressorMixin, FederatedEstimator):  # type: ignore[misc]
    """Poisson regression of counts across clients, with the logarithm as link.

    Parameters
    ----------
    constraint : set, str or None
        The set of the coefficients of standardised columns, such as ``"l1:8"``; None, the default,
        means none. The other parameters are those of
        `fedfw.estimators.FederatedEstimator`.

    Attributes
    ----------
    coef_, intercept_, selected_, certificate_, bytes_, inference_
        As of `LinearRegression`; exp of a coefficient is a rate ratio.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators import PoissonRegression
    >>> X = np.array([[0.0], [0.0], [1.0], [1.0]])
    >>> fit = PoissonRegression().fit(X, np.array([1.0, 3.0, 4.0, 8.0]), groups=[0, 1, 0, 1])
    >>> fit.predict(X).round(6)
    array([2., 2., 6., 6.])
    """

    deployed = "poisson"

    def _likelihood(self, sites: Sites) -> Likelihood:
        return Poisson()

    def fit(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
    ) -> Self:
        """Fit the model; ``offset`` (m,) is the logarithm of each row's exposure.

        The other arguments are those of `FederatedEstimator.fit`.
        """
        if offset is None:
            return super().fit(X, y, groups, sample_weight)
        return self._fit_sites(self._read(X, y, groups, sample_weight, offset))

    def predict(self, X: Any, offset: Any = None) -> Array:
        """Return the expected counts (m,) of rows X (m, p)."""
        columns = self._columns(X).numpy()
        predictor = columns @ self.coef_ + self.intercept_
        if offset is not None:
            predictor = predictor + np.asarray(offset, dtype=np.float64)
        return np.asarray(np.exp(predictor))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of the deviance that the model explains."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
