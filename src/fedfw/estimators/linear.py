"""Least squares."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from fedfw.estimators.base import Array, FederatedEstimator
from fedfw.estimators.likelihoods import Gaussian, Likelihood
from fedfw.estimators.sites import Sites


class LinearRegression(RegressorMixin, FederatedEstimator):  # type: ignore[misc]
    """Linear regression across clients: least squares, with a hard constraint on the coefficients
    or without one.

    Parameters
    ----------
    constraint : set, str or None
        The set of the coefficients of standardised columns, such as ``"l1:8"``; None, the default,
        means none. The other parameters are those of
        `fedfw.estimators.FederatedEstimator`.

    Attributes
    ----------
    coef_ : array
        (p,), on the original scale.
    intercept_ : float
    selected_ : array
        (p,), which variables are in the model.
    certificate_ : Certificate
        The mean half squared residual, a lower bound on the least one in the set, and their gap.
    bytes_ : Bytes
        What all clients sent up.
    inference_ : table
        Estimates, standard errors, p-values and intervals.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators import LinearRegression
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> fit = LinearRegression().fit(X, 1 + 2 * X[:, 0], groups=["a", "a", "b", "b"])
    >>> fit.coef_.round(6), round(fit.intercept_, 6)
    (array([2.]), 1.0)
    """

    deployed = "linear"

    def _likelihood(self, sites: Sites) -> Likelihood:
        return Gaussian()

    def predict(self, X: Any) -> Array:
        """Return the means (m,) of rows X (m, p)."""
        columns = self._columns(X).numpy()
        return np.asarray(columns @ self.coef_ + self.intercept_)
