"""Whom the attacks are on: a model, a client's samples, and what the client sends of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedfw.algorithms import FedFW, Setting, Upload
from fedfw.problems.modules import flatten, unflatten
from fedfw.sets import GroupBall, KSparse, L1Ball, L2Ball, LinfBall, NuclearBall, Product
from fedfw.sets.base import ConstraintSet, shapes_of


def deep_leakage_lenet(channels: int = 3, side: int = 32, classes: int = 100) -> nn.Sequential:
    """The network of the original attack: sigmoids, strides 2, 2, 1, weights uniform in [-0.5, 0.5].

    Reference: Zhu, Liu and Han, "Deep leakage from gradients" (2019).
    """
    layers: list[nn.Module] = []
    for inputs, stride in ((channels, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(inputs, 12, 5, stride, padding=2), nn.Sigmoid()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * (side // 4) ** 2, classes))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def softmax_regression(channels: int = 3, side: int = 32, classes: int = 100) -> nn.Sequential:
    """One linear layer, from zero."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, classes))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


MODELS: dict[str, Callable[..., nn.Module]] = {"lenet": deep_leakage_lenet, "softmax": softmax_regression}


@dataclass(frozen=True)
class Victims:
    """k clients with the same model, each with a batch of its own: images (k, b, c, h, w) in [0, 1], labels (k, b)."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    classes: int

    @property
    def start(self) -> Tensor:
        """The model's parameters, (p,)."""
        return flatten(list(self.model.parameters()))

    @property
    def targets(self) -> Tensor:
        """The true labels as distributions, (k, b, classes)."""
        return nnf.one_hot(self.labels, self.classes).to(self.images.dtype)

    def gradients(self, images: Tensor, targets: Tensor, x: Tensor) -> Tensor:
        """Each client's gradient (k, p) at x, (p,) for all or (k, p), if it held images (k, b, ...) with targets.

        Differentiable in the images and the targets (k, b, classes).
        """
        shapes = shapes_of(self.model)

        def loss(x: Tensor, images: Tensor, targets: Tensor) -> Tensor:
            scores = functional_call(self.model, unflatten(x, shapes), (images,))
            return -(targets * nnf.log_softmax(scores, 1)).sum(1).mean()

        each: Callable[..., Tensor] = vmap(grad(loss), in_dims=(None if x.ndim == 1 else 0, 0, 0))
        return each(x, images, targets)


@dataclass(frozen=True)
class Observation:
    """What the server has of k clients from one round.

    Parameters
    ----------
    sent
        (k, p): gradients, or atoms (made dense) of ``constraint``.
    x
        Where they stood: (p,) for all, or (k, p). The server rebuilds it from earlier atoms.
    offset
        What a client adds to its gradient before the oracle, and the server knows: lam (x_i - xbar).
    weight
        w_i, which the gradient is scaled by.
    """

    sent: Tensor
    x: Tensor
    constraint: ConstraintSet | None = None
    offset: Tensor | float = 0.0
    weight: float = 1.0

    def direction(self, gradients: Tensor) -> Tensor:
        """What the oracle would be given for these gradients (k, p)."""
        return self.weight * gradients + self.offset


def shared_gradients(victims: Victims) -> Observation:
    """What clients send that send gradients."""
    x = victims.start
    return Observation(victims.gradients(victims.images, victims.targets, x).detach(), x)


def holding(kind: str, model: nn.Module, per_parameter: bool = False) -> ConstraintSet | Product:
    """The smallest set of a kind that holds the model; an atom's direction has no radius.

    One of l1, l2, linf, ksparse:K on all parameters, or on each of them. Or nuclear or group (rows) on the matrices,
    with l1 on what is no matrix: it tells least, so that what is found is the matrices' doing.
    """
    x, room = flatten(list(model.parameters())), 1 + 1e-6
    name, _, k = kind.partition(":")
    if name in ("nuclear", "group"):
        parts: dict[str, ConstraintSet] = {}
        for key, parameter in model.named_parameters():
            if parameter.ndim == 2 and name == "nuclear":
                parts[key] = NuclearBall(room * float(torch.linalg.matrix_norm(parameter.detach(), "nuc")))
            elif parameter.ndim == 2:
                parts[key] = GroupBall(room * float(parameter.detach().norm(dim=1).sum()))
        return Product({**parts, "*": L1Ball(room * float(x.abs().sum()))})
    if name not in ("l1", "l2", "linf", "ksparse"):
        raise ValueError(f"{kind!r}, expected l1, l2, linf, ksparse:K, nuclear or group")
    largest, total = float(x.abs().max()), float(x.abs().sum())
    ball: ConstraintSet = LinfBall(room * largest)
    if name == "ksparse":
        ball = KSparse(int(k), room * max(largest, total / int(k)))
    elif name != "linf":
        ball = L1Ball(room * total) if name == "l1" else L2Ball(room * float(x.norm()))
    return Product({"*": ball}) if per_parameter else ball


def watch_fedfw(victims: Victims, constraint: Any, rounds: int, penalty: str = "auto") -> list[Observation]:
    """FedFW itself with the victims as its clients: what its server sees in each round."""
    k, x = len(victims.images), victims.start
    bound: ConstraintSet = constraint.bind(shapes_of(victims.model))
    if not bound.contains(x, 1e-4):
        raise ValueError(f"the model lies outside of {bound!r}: FedFW begins inside")
    algorithm = FedFW(constraint, penalty=penalty, schedule="nonconvex")

    def automatic_penalty() -> float:
        apart = victims.gradients(victims.images, victims.targets, x).detach()
        zeta = float((apart - apart.mean(0)).square().sum(1).mean().sqrt())
        return zeta / (2 * k * bound.diameter(tuple(x.shape)))

    plan = algorithm.plan(Setting(k, bound, False, 1.0, rounds, 1, automatic_penalty, lambda: None))
    state, server = algorithm.start_clients(x.repeat(k, 1)), algorithm.start_server(x)

    def gradient(x: Tensor, full: bool = False) -> tuple[Tensor, Tensor]:
        return x.new_zeros(k), victims.gradients(victims.images, victims.targets, x).detach() / k

    seen = []
    for t in range(1, rounds + 1):
        before = state["x"]
        server, message = algorithm.broadcast(plan, server, torch.arange(k), before, t)
        lmo = partial(bound.lmo, batch=True, tol=plan.oracle_tol(t))
        state, atoms, _ = algorithm.client_step(plan, state, message, gradient, lmo)
        offset = plan.rates(t).lam * (before - message.xbar)
        seen.append(Observation(atoms.dense(x.dtype), x if t == 1 else before, bound, offset, 1 / k))
        server = algorithm.server_step(plan, server, [Upload(torch.arange(k), atoms, before)], t)
    return seen


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int, seed: int = 0) -> None:
    """Some steps of Adam on public images (m, c, h, w), in place."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        rows = torch.randint(len(images), (64,), generator=generator).to(images.device)
        optimizer.zero_grad()
        nnf.cross_entropy(model(images[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
