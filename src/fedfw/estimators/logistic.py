"""Logistic regression, of two classes or more."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from fedfw.estimators.base import Array, FederatedEstimator
from fedfw.estimators.likelihoods import Likelihood, Logistic, Multinomial
from fedfw.estimators.model import FittedModel
from fedfw.estimators.sites import Sites


class LogisticRegression(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]
    """Logistic regression across clients, with a hard constraint on the coefficients or without.

    Two classes have one vector of coefficients, of the second class against the first. More have
    one vector each, as in softmax regression.

    Parameters
    ----------
    constraint : set, str or None
        The set of the coefficients of standardised columns, such as ``"l1:8"``; None, the default,
        means none. The other parameters are those of
        `fedfw.estimators.FederatedEstimator`.

    Attributes
    ----------
    classes_ : array
        (K,), the labels.
    coef_ : array
        (1, p) for two classes, else (K, p), on the original scale.
    intercept_ : array
        (1,) or (K,).
    selected_, certificate_, bytes_, inference_
        As of `LinearRegression`; exp of a coefficient is an odds ratio.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.estimators import LogisticRegression
    >>> X = np.array([[0.0], [0.0], [0.0], [1.0], [1.0], [1.0]])
    >>> y = np.array(["no", "no", "yes", "no", "yes", "yes"])
    >>> fit = LogisticRegression().fit(X, y, groups=[0, 1, 0, 1, 0, 1])
    >>> fit.coef_.round(4), round(np.log(4), 4)
    (array([[1.3863]]), np.float64(1.3863))
    """

    target = "label"
    deployed = "logistic"

    def _validate(self, X: Any, y: Any) -> tuple[Array, Array]:
        array, targets = validate_data(
            self, X, y, dtype=np.float64, ensure_all_finite=False, y_numeric=False
        )
        check_classification_targets(targets)
        return array, targets

    def _likelihood(self, sites: Sites) -> Likelihood:
        assert sites.classes is not None
        self.classes_ = sites.classes
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has only one class, {str(self.classes_[0])!r}, expected two or more: a "
                "classifier needs samples of each"
            )
        if len(self.classes_) == 2:
            return Logistic()
        return Multinomial(len(self.classes_), list(self.classes_))

    def _set_coefficients(self, model: FittedModel) -> None:
        self.coef_ = model.coef.numpy()
        self.intercept_ = model.intercept.numpy()

    def decision_function(self, X: Any) -> Array:
        """Return linear predictors: (m,) of the second class, or (m, K)."""
        columns = self._columns(X).numpy()
        scores = columns @ self.coef_.T + self.intercept_
        return np.asarray(scores[:, 0] if len(self.classes_) == 2 else scores)

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities (m, K) of the classes."""
        scores = self.decision_function(X)
        if len(self.classes_) > 2:
            return np.asarray(softmax(scores, axis=1))
        second = expit(scores)
        return np.column_stack([1 - second, second])

    def predict(self, X: Any) -> Array:
        """Return the labels (m,) of the most probable classes."""
        scores = self.decision_function(X)
        places = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        return np.asarray(self.classes_[places])
