"""Regression across clients in scikit-learn's conventions."""

from fedfw.estimators.base import FederatedEstimator
from fedfw.estimators.cox import CoxRegression
from fedfw.estimators.fitting import Bytes, Certificate, GapWarning
from fedfw.estimators.linear import LinearRegression
from fedfw.estimators.logistic import LogisticRegression
from fedfw.estimators.newton import SeparationWarning
from fedfw.estimators.path import Path, default_radii, path
from fedfw.estimators.poisson import PoissonRegression

__all__ = [
    "Bytes",
    "Certificate",
    "CoxRegression",
    "FederatedEstimator",
    "GapWarning",
    "LinearRegression",
    "LogisticRegression",
    "Path",
    "PoissonRegression",
    "SeparationWarning",
    "default_radii",
    "path",
]
