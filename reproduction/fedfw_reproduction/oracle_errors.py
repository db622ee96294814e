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

from fedfw.algorithms import Contract, FedFW, Gradient, Lmo, Message, Payload, Plan, State
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


_NO_PROOF = replace(FedFW.contract, proves=False)


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

    contract: ClassVar[Contract] = _NO_PROOF

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        t, x = message.t, state["x"]

        def sloppy(g: Tensor) -> Atom:
            s = lmo(g)
            if not self.delta:
                return s
            draws = torch.randn(
                g.shape, generator=generator(self.seed, "sloppy", t), dtype=torch.float32
            )
            v = lmo(draws.to(g)).dense(g.dtype)
            best = s.dot(g)
            allowed = {
                "multiplicative": self.delta
                * ((x * g).sum(1, dtype=torch.float64) - best).clamp(min=0),
                "additive": torch.full_like(best, self.delta * self.scale),
                "shrinking": torch.full_like(best, self.delta * self.scale * plan.rates(t).eta),
            }[self.kind]
            apart = ((v * g).sum(1, dtype=torch.float64) - best).clamp(min=1e-300)
            theta = (allowed / apart).clamp(max=1.0).to(g.dtype)[:, None]
            exact = s.dense(g.dtype)
            return Dense(
                shape=s.shape,
                batched=True,
                precision=torch.float32,
                values=torch.lerp(exact, v, theta).float(),
            )

        return super().local_update(plan, state, message, gradient, sloppy)


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
