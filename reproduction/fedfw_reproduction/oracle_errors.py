"""Oracles that err: how large an additive or a multiplicative error may be before FedFW breaks.

An answer s is replaced by s' = (1-theta) s + theta v, v a random extreme point, with theta (at most
1) such that

    multiplicative    <g, x_i - s'> = (1 - delta) <g, x_i - s>
    additive          <g, s'> = <g, s> + delta F(x^1) / n
    shrinking         <g, s'> = <g, s> + delta eta_t F(x^1) / n      (what the theory of Frank-Wolfe tolerates)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms import Client, FedFW, Message, Oracles, Payload, Run, State
from fedfw.atoms import Atom, Dense
from fedfw.config import constraint_of
from fedfw.randomness import generator
from fedfw.simulation import simulate
from fedfw_reproduction.cells import Cell, columns_of, placed, problem_of
from fedfw_reproduction.lab import Json, Site
from fedfw_reproduction.schema import Identity, identity

KINDS = {
    "multiplicative": (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0),
    "additive": (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "shrinking": (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
}


@dataclass(frozen=True)
class SloppyFedFW(FedFW):
    """FedFW whose oracle errs.

    Parameters
    ----------
    kind : str
        multiplicative, additive or shrinking; see the top of the file.
    delta : float
        The size of the error.
    scale : float
        What additive errors are measured in.
    seed : int
        From which the random extreme points are drawn.
    """

    kind: str = "multiplicative"
    delta: float = 0.0
    scale: float = 1.0
    seed: int = 0

    proves_bounds: ClassVar[bool] = False

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        return super().local_update(run, client, msg, SloppyOracles(self, client, msg, oracles))

    def allowed_error(self, x: Tensor, g: Tensor, best: Tensor, eta: float) -> Tensor:
        """Return by how much <g, s'> may exceed <g, s> = best, for each client (m,)."""
        if self.kind == "multiplicative":
            return self.delta * (inner(x, g) - best).clamp(min=0)
        size = self.delta * self.scale
        if self.kind == "shrinking":
            size = size * eta
        return torch.full_like(best, size)


class SloppyOracles:
    """The oracles of clients at their points, with errors of a `SloppyFedFW`."""

    def __init__(self, method: SloppyFedFW, client: Client, msg: Message, exact: Oracles) -> None:
        self.method = method
        self.client = client
        self.msg = msg
        self.exact = exact
        self.m = exact.m

    def gradient(self, x: Tensor, times: str = "w", full: bool = False) -> Tensor:
        """Return the exact gradients (m, p)."""
        return self.exact.gradient(x, times, full)

    def lmo(self, g: Tensor) -> Atom:
        """Return atoms that are worse than the best ones by the allowed error."""
        method = self.method
        s = self.exact.lmo(g)
        if not method.delta:
            return s
        source = generator(method.seed, "sloppy", self.msg.t)
        draws = torch.randn(g.shape, generator=source, dtype=torch.float32)
        v = self.exact.lmo(draws.to(g)).dense(g.dtype)
        best = s.dot(g)
        x = self.client.shared["x"]
        allowed = method.allowed_error(x, g, best, self.msg.rates[0].eta)
        apart = (inner(v, g) - best).clamp(min=1e-300)
        theta = (allowed / apart).clamp(max=1.0).to(g.dtype)[:, None]
        values = torch.lerp(s.dense(g.dtype), v, theta).float()
        return Dense(shape=s.shape, batched=True, precision=torch.float32, values=values)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products of rows, (m,) in float64."""
    return (a * b).sum(1, dtype=torch.float64)


@dataclass(frozen=True)
class Sloppy:
    """FedFW with oracle errors of one kind and size."""

    cell: Cell
    kind: str
    delta: float

    @property
    def title(self) -> str:
        return f"{self.kind} oracle error {self.delta:g} on {self.cell.config.constraint}"

    @property
    def weight(self) -> float:
        return self.cell.weight

    def identity(self) -> Identity:
        return identity("oracle error", cell=self.cell.identity(), kind=self.kind, delta=self.delta)

    def compute(self, site: Site) -> Json:
        runs = []
        for seed in range(self.cell.seeds):
            config = placed(replace(self.cell.config, seed=seed), site)
            problem = problem_of(config, self.cell.samples)
            scale = problem.value(problem.start) / problem.n
            algorithm = SloppyFedFW(
                constraint_of(config),
                penalty=config.get("penalty"),
                momentum=0.0,
                kind=self.kind,
                delta=self.delta,
                scale=scale,
                seed=seed,
            )
            run = simulate(
                problem, algorithm, rounds=config.rounds, eval_every=config.rounds, seed=seed
            )
            runs.append(columns_of(run) | {"seed": seed})
        return {"runs": runs}
