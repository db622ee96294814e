"""Models whose losses are convex: they all begin at zero."""

from torch import nn

from fedfw.data import Data
from fedfw.models.kinds import classes, features, require
from fedfw.problems.completion import MatrixCompletion


def _from_zero(model: nn.Linear) -> nn.Linear:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def mclr(data: Data) -> nn.Module:
    return _from_zero(nn.Linear(features(data), classes(data)))


def logistic(data: Data) -> nn.Module:
    """Return logistic regression for two classes, from zero."""
    if classes(data) != 2:
        raise ValueError(
            f"logistic regression is for two classes, and {data.name} has {data.classes}"
        )
    return _from_zero(nn.Linear(features(data), 1))


def linear(data: Data) -> nn.Module:
    """Return linear regression for numbers, from zero."""
    require(data, "numbers")
    return _from_zero(nn.Linear(features(data), 1))


def cox(data: Data) -> nn.Module:
    """Return Cox's proportional hazards model for times until an event, from zero."""
    require(data, "times until an event")
    # What is added to all scores changes nothing.
    return _from_zero(nn.Linear(features(data), 1, bias=False))


def completion(data: Data) -> nn.Module:
    """Return the matrix of ratings as one parameter, users by items."""
    require(data, "ratings")
    assert data.sides is not None
    return MatrixCompletion(*data.sides)
