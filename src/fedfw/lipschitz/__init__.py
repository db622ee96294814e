"""Bounds on how a network stretches distances between inputs, and what they prove about attacks
on its inputs.
"""

from fedfw.lipschitz.bound import lipschitz_bound
from fedfw.lipschitz.certified import certified_accuracy
from fedfw.lipschitz.layers import MaxMin, Residual

__all__ = [
    "MaxMin",
    "Residual",
    "certified_accuracy",
    "lipschitz_bound",
]
