"""The entries of the table of models, and the requirements of models on their data."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from torch import nn

from fedfw.data import Data
from fedfw.problems.known_losses import LossFunction, Per
from fedfw.problems.stacks import Samples


@dataclass(frozen=True)
class ModelKind:
    """One entry of the table.

    Parameters
    ----------
    summary
        What it is, in a line.
    build
        From the data it is for; random starts come from torch's generator. Its keywords are sizes
        that a user may choose, with their defaults: see `sizes`.
    loss
        Of outputs and targets, a mean over samples but for ``per``.
    convex
        Whether the loss is convex in the parameters.
    flat
        Whether inputs are flattened to vectors.
    column
        Whether targets become a column of numbers (samples, 1).
    per
        "client" where the loss is of all of a client's samples together.
    """

    summary: str
    build: Callable[..., nn.Module]
    loss: LossFunction
    convex: bool
    flat: bool = True
    column: bool = False
    per: Per = "sample"

    @property
    def sizes(self) -> list[str]:
        """Return the names of the sizes that may be chosen, such as width."""
        return list(inspect.signature(self.build).parameters)[1:]

    def samples(self, samples: Samples) -> Samples:
        """Return inputs and targets in the form that the model and its loss take."""
        inputs, targets = samples
        # Vectors are as they should be; sparse ones cannot be flattened.
        return (inputs.flatten(1) if self.flat and inputs.ndim > 2 else inputs), (
            targets.float()[:, None] if self.column else targets
        )


def features(data: Data) -> int:
    """Return how many numbers an input has."""
    return prod(data.shape)


def targets_of(data: Data) -> str:
    """Return the kind of a data set's targets, in words."""
    if data.sides is not None:
        return "ratings"
    if data.survival:
        return "times until an event"
    if data.sequences:
        return "sequences"
    return "numbers" if data.classes is None else "classes"


_USUAL = {
    "ratings": "completion",
    "times until an event": "cox",
    "sequences": "transformer",
    "numbers": "linear",
    "classes": "mclr",
}


def usual_model(data: Data) -> str:
    """Return the name of the simplest model that fits the data."""
    return "logistic" if data.classes == 2 else _USUAL[targets_of(data)]


def require(data: Data, kind: str) -> None:
    """Refuse data whose targets are of another kind than a model is for."""
    found = targets_of(data)
    if found != kind:
        raise ValueError(
            f"{data.name} has {found} for targets, expected {kind}: "
            f"use the model {usual_model(data)}"
        )


def classes(data: Data) -> int:
    """Return how many classes there are, for models that need some."""
    require(data, "classes")
    assert data.classes is not None
    return data.classes


def image(data: Data, least: int) -> tuple[int, int, int]:
    """Return channels, height and width of inputs that are images of at least so many pixels a
    side.
    """
    if len(data.shape) != 3 or min(data.shape[1:]) < least:
        raise ValueError(
            f"{data.name} has inputs of shape {data.shape}, expected images of at least "
            f"{least}x{least}"
        )
    channels, height, width = data.shape
    return channels, height, width
