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


def classes(data: Data) -> int:
    """Return how many classes there are, for models that need some."""
    if data.classes is None:
        if data.survival:
            better = "cox"
        elif data.sides is None:
            better = "linear"
        else:
            better = "completion"
        raise ValueError(
            f"{data.name} has numbers for targets, expected classes: use the model {better}"
        )
    if data.sequences:
        raise ValueError(
            f"{data.name} has sequences for targets, expected one class: use the model transformer"
        )
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
