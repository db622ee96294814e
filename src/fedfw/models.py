"""Models by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def mclr(features: int, classes: int, seed: int) -> nn.Module:
    """Softmax regression (multinomial logistic regression), from zero; convex."""
    model = nn.Linear(features, classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def mlp(features: int, classes: int, seed: int) -> nn.Module:
    """Two hidden layers of 64; not convex. Its start is drawn from the seed."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes))
    torch.random.set_rng_state(state)
    return model


MODELS: dict[str, Callable[[int, int, int], nn.Module]] = {"mclr": mclr, "mlp": mlp}


def make_model(name: str, features: int, classes: int, seed: int) -> nn.Module:
    """A model by its name."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}, expected one of {', '.join(MODELS)}")
    return MODELS[name](features, classes, seed)
