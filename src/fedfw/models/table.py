"""Models by name, each with its loss, what it takes and whether it is convex.

The smoothness constant that goes with a model and its data is worked out by `Problem.smoothness`;
networks have none.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as nnf
from torch import nn

from fedfw.data import Data
from fedfw.models import images, linear
from fedfw.models.kinds import ModelKind
from fedfw.models.own import is_own, own_kind
from fedfw.models.transformer import transformer
from fedfw.options import nearest
from fedfw.problems import cox_loss
from fedfw.problems.known_losses import ScaledCrossEntropy

MODELS: dict[str, ModelKind] = {
    "mclr": ModelKind("softmax regression, from zero", linear.mclr, nnf.cross_entropy, True),
    "logistic": ModelKind(
        "logistic regression for two classes, from zero",
        linear.logistic,
        nnf.binary_cross_entropy_with_logits,
        True,
        column=True,
    ),
    "linear": ModelKind("least squares, from zero", linear.linear, nnf.mse_loss, True, column=True),
    "completion": ModelKind(
        "matrix completion, from zero", linear.completion, nnf.mse_loss, True, flat=False
    ),
    "cox": ModelKind(
        "Cox's model of the time until an event, from zero",
        linear.cox,
        cox_loss,
        True,
        per="client",
    ),
    "mlp": ModelKind("two hidden layers of 100", images.mlp, nnf.cross_entropy, False),
    "cnn": ModelKind(
        "images in [-1, 1], conv 32x5, conv 64x5, fc 128",
        images.cnn,
        nnf.cross_entropy,
        False,
        flat=False,
    ),
    "cnn-cifar": ModelKind(
        "images in [-1, 1], conv 32, 64, 64 of 3x3, fc 256, 128",
        images.cnn_cifar,
        nnf.cross_entropy,
        False,
        flat=False,
    ),
    "transformer": ModelKind(
        "the next character of a text, 4 blocks of 128 or as given",
        transformer,
        nnf.cross_entropy,
        False,
        flat=False,
    ),
    "maxmin-mlp": ModelKind(
        "two hidden layers of 512 with max/min of pairs, for lipschitz:L",
        images.maxmin_mlp,
        ScaledCrossEntropy(3.0),
        False,
    ),
    "lipschitz-cnn": ModelKind(
        "conv 32, 64 of 4x4 with stride 2, fc 128, max/min of pairs, for lipschitz:L",
        images.lipschitz_cnn,
        ScaledCrossEntropy(3.0),
        False,
        flat=False,
    ),
}
"""Every model by its name."""


def kind_of(name: str, data: Data) -> ModelKind:
    """Return a model kind of the table, or of a user's own function as in ``my_module:make``; other
    names are refused.

    Capital letters matter in a user's own names alone.
    """
    if is_own(name):
        return own_kind(name, data)
    key = name.lower()
    if key not in MODELS:
        raise ValueError(
            f"unknown model {name!r}{nearest(key, MODELS)}, expected one of {', '.join(MODELS)}, "
            "or your own as in my_module:make"
        )
    return MODELS[key]


def make_model(
    name: str, data: Data, seed: int, size: Mapping[str, int] | None = None
) -> nn.Module:
    """Return a model by its name; its start is drawn from the seed.

    Parameters
    ----------
    name : str
        A key of `MODELS`, or a user's own as in ``my_module:make``.
    data : Data
        What it is for.
    seed : int
        Of the start.
    size : mapping of str to int, optional
        Sizes such as ``{"width": 64}`` in the place of the model's own; those that it does not have
        are refused.
    """
    kind = kind_of(name, data)
    for key, value in (size or {}).items():
        if key not in kind.sizes:
            owners = ", ".join(owner for owner, other in MODELS.items() if key in other.sizes)
            raise ValueError(f"{key}={value} goes with {owners or 'no model'}, not with {name}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind.build(data, **(size or {}))
