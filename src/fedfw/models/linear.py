"""Models whose losses are convex: they all begin at zero."""

from torch import nn

from fedfw.data import Data
from fedfw.models.kinds import classes, features
from fedfw.problems.completion import MatrixCompletion


def _from_zero(model: nn.Linear) -> nn.Linear:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def mclr(data: Data) -> nn.Module:
    return _from_zero(nn.Linear(features(data), classes(data)))


def logistic(data: Data) -> nn.Module:
    """Return logistic regression for two classes, from zero."""
    if data.classes != 2:
        raise ValueError(
            f"logistic regression is for two classes, and {data.name} has {data.classes or 'none'}"
        )
    return _from_zero(nn.Linear(features(data), 1))


def linear(data: Data) -> nn.Module:
    """Return linear regression for numbers, from zero."""
    if data.classes is not None:
        raise ValueError(
            f"{data.name} has classes, expected numbers: use mclr or logistic (libsvm-numbers:PATH "
            "has them)"
        )
    if data.sides is not None:
        raise ValueError(
            f"{data.name} has ratings, expected rows of features: use the model completion"
        )
    if data.survival:
        raise ValueError(
            f"{data.name} has times until an event, expected numbers: use the model cox"
        )
    return _from_zero(nn.Linear(features(data), 1))


def cox(data: Data) -> nn.Module:
    """Return Cox's proportional hazards model for times until an event, from zero."""
    if not data.survival:
        raise ValueError(
            f"Cox's model is for times until an event such as tcga-brca, and {data.name} has none"
        )
    # What is added to all scores changes nothing.
    return _from_zero(nn.Linear(features(data), 1, bias=False))


def completion(data: Data) -> nn.Module:
    """Return the matrix of ratings as one parameter, users by items."""
    if data.sides is None:
        raise ValueError(
            f"matrix completion is for ratings such as ml-100k, and {data.name} has none"
        )
    return MatrixCompletion(*data.sides)
