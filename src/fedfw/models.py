"""Models by name, each with its loss, what it takes and whether it is convex.

The smoothness constant that goes with a model and its data is worked out by `Problem.smoothness`; networks have none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.data import Data
from fedfw.problems.completion import MatrixCompletion
from fedfw.problems.known_losses import LossFunction
from fedfw.problems.stacks import Samples


@dataclass(frozen=True)
class ModelKind:
    """One entry of the table.

    Parameters
    ----------
    summary
        What it is, in a line.
    build
        From the data it is for; random starts come from torch's generator.
    loss
        Of outputs and targets, a mean over samples.
    convex
        Whether the loss is convex in the parameters.
    flat
        Whether inputs are flattened to vectors.
    column
        Whether targets become a column of numbers (samples, 1).
    """

    summary: str
    build: Callable[[Data], nn.Module]
    loss: LossFunction
    convex: bool
    flat: bool = True
    column: bool = False

    def samples(self, samples: Samples) -> Samples:
        """Inputs and targets in the form that the model and its loss take."""
        inputs, targets = samples
        return (inputs.flatten(1) if self.flat else inputs), (targets.float()[:, None] if self.column else targets)


def _features(data: Data) -> int:
    return prod(data.shape)


def _classes(data: Data) -> int:
    if data.classes is None:
        better = "linear" if data.sides is None else "completion"
        raise ValueError(f"{data.name} has numbers for targets, expected classes: use the model {better}")
    return data.classes


def _from_zero(model: nn.Linear) -> nn.Linear:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def _mclr(data: Data) -> nn.Module:
    return _from_zero(nn.Linear(_features(data), _classes(data)))


def _logistic(data: Data) -> nn.Module:
    if data.classes != 2:
        raise ValueError(f"logistic regression is for two classes, and {data.name} has {data.classes or 'none'}")
    return _from_zero(nn.Linear(_features(data), 1))


def _linear(data: Data) -> nn.Module:
    if data.classes is not None:
        raise ValueError(
            f"{data.name} has classes, expected numbers: use mclr or logistic (libsvm-numbers:PATH has them)"
        )
    if data.sides is not None:
        raise ValueError(f"{data.name} has ratings, expected rows of features: use the model completion")
    return _from_zero(nn.Linear(_features(data), 1))


def _completion(data: Data) -> nn.Module:
    if data.sides is None:
        raise ValueError(f"matrix completion is for ratings such as ml-100k, and {data.name} has none")
    return MatrixCompletion(*data.sides)


def _mlp(data: Data) -> nn.Module:
    layers = [nn.Linear(_features(data), 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, _classes(data)))


def _image(data: Data, least: int) -> tuple[int, int, int]:
    if len(data.shape) != 3 or min(data.shape[1:]) < least:
        raise ValueError(f"{data.name} has inputs of shape {data.shape}, expected images of at least {least}x{least}")
    channels, height, width = data.shape
    return channels, height, width


class Centred(nn.Module):
    """Images from [0, 1] to [-1, 1]: with all inputs positive, Frank-Wolfe's long first steps can kill a network."""

    def forward(self, images: Tensor) -> Tensor:
        return 2 * images - 1


def _cnn(data: Data) -> nn.Module:
    channels, height, width = _image(data, 16)
    left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    return nn.Sequential(
        Centred(),
        *(nn.Conv2d(channels, 32, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * prod(left), 128), nn.ReLU(), nn.Linear(128, _classes(data))),
    )


def _cnn_cifar(data: Data) -> nn.Module:
    channels, height, width = _image(data, 8)
    return nn.Sequential(
        Centred(),
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * (height // 8) * (width // 8), 256), nn.ReLU()),
        *(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, _classes(data))),
    )


MODELS: dict[str, ModelKind] = {
    "mclr": ModelKind("softmax regression, from zero", _mclr, nnf.cross_entropy, True),
    "logistic": ModelKind(
        "logistic regression for two classes, from zero",
        _logistic,
        nnf.binary_cross_entropy_with_logits,
        True,
        column=True,
    ),
    "linear": ModelKind("least squares, from zero", _linear, nnf.mse_loss, True, column=True),
    "completion": ModelKind("matrix completion, from zero", _completion, nnf.mse_loss, True, flat=False),
    "mlp": ModelKind("two hidden layers of 100", _mlp, nnf.cross_entropy, False),
    "cnn": ModelKind("images in [-1, 1], conv 32x5, conv 64x5, fc 128", _cnn, nnf.cross_entropy, False, flat=False),
    "cnn-cifar": ModelKind(
        "images in [-1, 1], conv 32, 64, 64 of 3x3, fc 256, 128", _cnn_cifar, nnf.cross_entropy, False, flat=False
    ),
}
"""Every model by its name."""


def make_model(name: str, data: Data, seed: int) -> nn.Module:
    """A model by its name; its start is drawn from the seed."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}, expected one of {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name].build(data)
