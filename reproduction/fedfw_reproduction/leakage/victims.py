"""Whom the attacks are on: a model, a client's samples, and what the client sends of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedfw.algorithms import Client, FedFW, Message, Oracles, Payload, Run, State
from fedfw.problems import Problem, flatten, unflatten
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
from fedfw.simulation import simulate


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

    def to(self, device: torch.device) -> Observation:
        """Return the same on a device."""
        offset = torch.as_tensor(self.offset).to(device)
        return replace(self, sent=self.sent.to(device), x=self.x.to(device), offset=offset)

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


@dataclass(frozen=True)
class WatchedFedFW(FedFW):
    """FedFW that keeps what its server sees in each round."""

    seen: list[Observation] = field(default_factory=list, compare=False)

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        private, payload = super().local_update(run, client, msg, oracles)
        observed = Observation(
            sent=payload["atom"].dense(run.dtype),
            x=client.shared["x"].to(run.dtype),
            constraint=run.constraint,
            offset=self.public_direction(run, client.shared, msg).to(run.dtype),
            weight=1 / run.n,
        )
        self.seen.append(observed)
        return private, payload


def watch_fedfw(
    victims: Victims, constraint: ConstraintSet | Product, rounds: int
) -> list[Observation]:
    """Run FedFW with the victims as its clients; return what its server sees in each round."""
    x = victims.start
    bound = constraint.bind(shapes_of(victims.model))
    if not bound.contains(x, 1e-4):
        raise ValueError(f"the model lies outside of {bound!r}: FedFW begins inside")
    # On the host: a GPU replays rounds, and a replayed round does not call `local_update`.
    clients = list(zip(victims.images.cpu(), victims.labels.cpu(), strict=True))
    problem = Problem(copy.deepcopy(victims.model).cpu(), nnf.cross_entropy, clients)
    algorithm = WatchedFedFW(constraint, penalty="theory", schedule="nonconvex", momentum=0.0)
    simulate(problem, algorithm, rounds=rounds, eval_every=rounds)
    seen = [one.to(x.device) for one in algorithm.seen]
    return [replace(seen[0], x=x), *seen[1:]]  # at first all clients are at one point


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int, seed: int = 0) -> None:
    """Some steps of Adam on public images (m, c, h, w), in place."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        rows = torch.randint(len(images), (64,), generator=generator).to(images.device)
        optimizer.zero_grad()
        nnf.cross_entropy(model(images[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
