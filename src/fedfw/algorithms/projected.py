"""What the baselines share: gradient steps on each client, dense vectors up and down, a projection.

They minimise F = (1/n) sum h_i with h_i = n w_i f_i. A local step minimises the linearised loss near x, pulled to a
centre:

    x <- argmin over u of <grad h_i(x), u> + ||u - x||^2 / (2 lr) + weight ||u - centre||^2 / 2
       = x - (grad h_i(x) + weight (x - centre)) / (1/lr + weight)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import Algorithm, Gradient, Plan, Server, Setting, Upload, scaled
from fedfw.atoms import Dense


def refuse_unless_positive(**values: float) -> None:
    """Refuse numbers that are not positive and finite."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value}, expected a positive number")


@dataclass(frozen=True)
class ProjectedAlgorithm(Algorithm):
    """Clients take gradient steps and send dense vectors; the server projects.

    Parameters
    ----------
    lr
        Step size, or "auto": 1 / L' with L' = n max w_i L_i, where the problem knows its smoothness; "auto:2" is twice
        that.
    """

    _: KW_ONLY
    lr: float | str = "auto"

    needs_projection: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unless_positive(lr=scaled("lr", self.lr, 1.0))

    def plan(self, setting: Setting) -> Plan:
        smoothness = setting.smoothness() if isinstance(self.lr, str) else None
        lr = scaled("lr", self.lr, None if smoothness is None else 1 / smoothness)
        return Plan(setting.n, setting.constraint, setting.local_steps, lr=lr)


@dataclass(frozen=True)
class SplittingAlgorithm(ProjectedAlgorithm):
    """Each client has a word, the absent ones their last: xtilde is the mean of all of them, and xbar = P(xtilde).

    Clients send how their word changed. The projected point never enters xtilde.

    Parameters
    ----------
    eta
        Parameter of the proximal step.
    """

    eta: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unless_positive(eta=self.eta)

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"xtilde": x.clone()})

    def server_step(self, plan: Plan, server: Server, uploads: Sequence[Upload], t: int) -> Server:
        changes, _ = total(server, uploads)
        xtilde = server.vectors["xtilde"] + changes / plan.n
        return Server(plan.project(xtilde), {"xtilde": xtilde})


def descend(plan: Plan, gradient: Gradient, x: Tensor, centre: Tensor, weight: float) -> Tensor:
    """The local steps above, from x (m, p), with the pull to ``centre`` (m, p) or (p,)."""
    step = 1 / (1 / plan.lr + weight)
    for _ in range(plan.local_steps):
        _, a = gradient(x)  # w_i grad f_i, so that grad h_i = n a
        slope = a.mul_(plan.n)
        if weight:
            slope = slope.add_(x - centre, alpha=weight)
        x = x - step * slope
    return x


def dense(values: Tensor) -> Dense:
    """A stack of vectors (m, p) that travel whole."""
    return Dense(shape=(values.shape[1],), batched=True, precision=values.dtype, values=values)


def total(server: Server, uploads: Sequence[Upload]) -> tuple[Tensor, int]:
    """The sum (p,) of what was sent, and how many sent it."""
    gathered = torch.zeros_like(server.xbar)
    for upload in uploads:
        upload.atoms.add_sum_to(gathered)
    return gathered, sum(len(upload.who) for upload in uploads)
