"""How far a network can stretch the distance between two inputs, and what that proves about attacks
on its inputs.
"""

from fedfw.lipschitz.bound import layer_constants, lipschitz_bound
from fedfw.lipschitz.certified import certified_accuracy
from fedfw.lipschitz.layers import GroupSort, MaxMin, Normalise, Residual, Scaled

__all__ = [
    "GroupSort",
    "MaxMin",
    "Normalise",
    "Residual",
    "Scaled",
    "certified_accuracy",
    "layer_constants",
    "lipschitz_bound",
]
