"""Regression across clients in scikit-learn's conventions."""

from fedfw.estimators.base import FederatedEstimator
from fedfw.estimators.cox import CoxRegression
from fedfw.estimators.fitting import Bytes, Certificate, GapWarning
from fedfw.estimators.linear import LinearRegression
from fedfw.estimators.logistic import LogisticRegression
from fedfw.estimators.newton import SeparationWarning
from fedfw.estimators.path import Path, path
from fedfw.estimators.poisson import PoissonRegression
from fedfw.estimators.radii import default_radii
from fedfw.estimators.radius_cv import RadiusCV
from fedfw.estimators.stability import StabilitySelection

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
    "RadiusCV",
    "SeparationWarning",
    "StabilitySelection",
    "default_radii",
    "path",
]
