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

from fedfw.algorithms import FedFW, Run, Setting
from fedfw.problems import flatten, unflatten
from fedfw.rounds.channels import make_channels
from fedfw.rounds.client_steps import Method, WatchedOracles, split, take_part
from fedfw.rounds.coordinator import Coordinator
from fedfw.rounds.downlink import make_downlink
from fedfw.rounds.memory import EveryRow
from fedfw.rounds.sums import Upload
from fedfw.sets import (
    ConstraintSet,
    GroupBall,
    KSparse,
    L1Ball,
    L2Ball,
    LinfBall,
    NuclearBall,
    Product,
    shapes_of,
)


def deep_leakage_lenet(channels: int = 3, side: int = 32, classes: int = 100) -> nn.Sequential:
    """The network of the original attack: sigmoids, strides 2, 2, 1, weights uniform in [-0.5,
    0.5].

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


MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet": deep_leakage_lenet,
    "softmax": softmax_regression,
}


@dataclass(frozen=True)
class Victims:
    """k clients with the same model, each with a batch of its own.

    Parameters
    ----------
    model : Module
        Which all of them train.
    images : Tensor
        (k, b, c, h, w), in [0, 1].
    labels : Tensor
        (k, b).
    classes : int
        How many there are.
    """

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
        """Each client's gradient (k, p) at x, (p,) for all or (k, p), if it held images (k, b, ...)
        with targets.

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
    sent : Tensor
        (k, p): gradients, or atoms (made dense) of ``constraint``.
    x : Tensor
        Where they stood: (p,) for all, or (k, p). The server rebuilds it from earlier atoms.
    constraint : ConstraintSet or None
        The set whose atoms were sent; None for gradients.
    offset : Tensor or float
        What a client adds to its gradient before the oracle, and the server knows: lam (x_i -
        xbar).
    weight : float
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
    """What is seen of clients that send gradients."""
    x = victims.start
    return Observation(victims.gradients(victims.images, victims.targets, x).detach(), x)


def holding(kind: str, model: nn.Module, per_parameter: bool = False) -> ConstraintSet | Product:
    """The smallest set of a kind that holds the model; an atom's direction has no radius.

    One of l1, l2, linf, ksparse:K on all parameters, or on each of them. Or nuclear or group (rows)
    on the matrices, with l1 on what is no matrix: it reveals least, so that what is found comes
    from the matrices.
    """
    x, room = flatten(list(model.parameters())), 1 + 1e-6
    name, _, k = kind.partition(":")
    if name in ("nuclear", "group"):
        parts: dict[str, ConstraintSet] = {}
        for key, parameter in model.named_parameters():
            if parameter.ndim == 2 and name == "nuclear":
                parts[key] = NuclearBall(
                    room * float(torch.linalg.matrix_norm(parameter.detach(), "nuc"))
                )
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


def watch_fedfw(
    victims: Victims, constraint: Any, rounds: int, penalty: str = "theory"
) -> list[Observation]:
    """FedFW itself with the victims as its clients: what its server sees in each round."""
    k, x = len(victims.images), victims.start
    bound: ConstraintSet = constraint.bind(shapes_of(victims.model))
    if not bound.contains(x, 1e-4):
        raise ValueError(f"the model lies outside of {bound!r}: FedFW begins inside")

    def gradients(x: Tensor) -> Tensor:
        return victims.gradients(victims.images, victims.targets, x).detach()

    def heterogeneity() -> float:
        apart = gradients(x)
        return float((apart - apart.mean(0)).square().sum(1).mean().sqrt())

    precision = x.dtype

    def weighted(
        x: Tensor, full: bool = False, exact: bool = False, plain: bool = False, times: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        return x.new_zeros(k), gradients(x.to(precision)) * (
            times / k
        )  # nobody asks for the losses

    chosen = FedFW(constraint, penalty=penalty, schedule="nonconvex", momentum=0.0)
    shape = tuple(x.shape)
    setting = Setting(k, bound, shape, convex=False, rounds=rounds, heterogeneity=heterogeneity)
    algorithm, rule = chosen.configure(setting)
    method = Method(algorithm, rule, make_channels(algorithm, setting))
    run = Run(k, bound, precision)
    memory = EveryRow(method.init(run, x.repeat(k, 1)).flat(), k)
    coordinator = Coordinator(method, run, x, memory, make_downlink(algorithm, precision))
    everyone = torch.arange(k, device=x.device)
    seen = []
    for t in range(1, rounds + 1):
        now = coordinator.open(t, [everyone])
        message = coordinator.announce(now)
        coordinator.number(now)
        before = split(now.states[0], coordinator.shared_names)
        lmo = partial(bound.lmo, batch=True, tol=message.oracle_tol)
        oracles = WatchedOracles(weighted, lmo, k, k)
        after, sending = take_part(method, now.exchange, run, before, message, oracles)
        shared = before.client.shared
        now.arrive(Upload(everyone, shared, sending.sent, sending.decoded, after.flat()))
        coordinator.close(now)
        seen.append(
            Observation(
                sent=sending.decoded["atom"].dense(precision),
                x=x if t == 1 else shared["x"].to(precision),
                constraint=bound,
                offset=algorithm.public_direction(run, shared, message).to(precision),
                weight=1 / k,
            )
        )
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
