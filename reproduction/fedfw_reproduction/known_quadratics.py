"""Quadratics whose optimum and constants are known: the ground on which the theory is tested.

f_i(x) = (x - c_i)' A_i (x - c_i) / 2,   a_i(x) = w_i grad f_i(x),   Lh = max_i w_i L_i,   D the diameter,
H >= max over the set of sqrt(sum_i ||a_i(x) - mean_j a_j(x)||^2), how much the clients differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from fedfw.problems import Problem
from fedfw.problems.quadratics import quadratic_problem, random_quadratics
from fedfw.sets import Box, ConstraintSet, L1Ball, L2Ball, Simplex
from fedfw.simulation import Run

N, P = 8, 12
SETS: dict[str, ConstraintSet] = {
    "l2": L2Ball(1.0),
    "l1": L1Ball(1.0),
    "box": Box(-0.5, 0.5),
    "simplex": Simplex(1.0),
}


@dataclass(frozen=True)
class Quadratics:
    """n quadratic clients on a set, the constants of the theory, and the optimum by accelerated
    projected gradient.
    """

    constraint: ConstraintSet
    A: Tensor
    c: Tensor
    weights: tuple[float, ...] | None = None
    convex: bool = True

    @classmethod
    @lru_cache(maxsize=64)  # its optimum is worked out once
    def on(cls, name: str, seed: int = 0, n: int = N) -> Quadratics:
        A, c = random_quadratics(n, P, 10.0, 1.0, seed)
        return cls(SETS[name], A, c)

    @property
    def n(self) -> int:
        return len(self.A)

    @cached_property
    def w(self) -> Tensor:
        given = self.weights or (1 / self.n,) * self.n
        return torch.tensor(given, dtype=torch.float64)

    @cached_property
    def start(self) -> Tensor:
        return self.constraint.project(torch.zeros(P, dtype=torch.float64))

    @property
    def problem(self) -> Problem:
        """Return a problem of its own for every caller: runs and tests may change what they get."""
        return quadratic_problem(self.A, self.c, self.start, self.weights, self.convex)

    def gradients(self, x: Tensor) -> Tensor:
        """a_i(x) = w_i grad f_i(x): (n, p)."""
        return self.w[:, None] * torch.bmm(self.A, (x - self.c).unsqueeze(2)).squeeze(2)

    def value(self, x: Tensor) -> float:
        return float(((x - self.c) * self.gradients(x)).sum() / 2)

    @cached_property
    def optimum(self) -> Tensor:
        """By accelerated projected gradient, which begins anew where its momentum points uphill,
        until nothing moves.

        Reference: O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes"
        (2015).
        """
        mean, pull = (
            torch.einsum("n,nij->ij", self.w, self.A),
            torch.einsum("n,nij,nj->i", self.w, self.A, self.c),
        )
        step = 1 / float(torch.linalg.eigvalsh(mean)[-1])
        x = z = self.start
        momentum = 1.0
        for _ in range(3000):
            following = self.constraint.project(z - step * (mean @ z - pull))
            if float((following - z).abs().max()) <= 1e-15:
                return following
            uphill = float((z - following) @ (following - x)) > 0
            faster = 1.0 if uphill else (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            z = following + (momentum - 1) / faster * (following - x)
            x, momentum = following, faster
        return x

    @cached_property
    def least(self) -> float:
        return self.value(self.optimum)

    @cached_property
    def D(self) -> float:
        return self.constraint.diameter((P,))

    @cached_property
    def smoothness(self) -> Tensor:
        """w_i L_i (n,)."""
        largest: Tensor = torch.linalg.eigvalsh(self.A)[:, -1]
        return self.w * largest

    @cached_property
    def Lh(self) -> float:
        return float(self.smoothness.max())

    @cached_property
    def H(self) -> float:
        """How much the clients differ, bounded over the set."""
        a = self.gradients(self.optimum)
        dual = a.mean(0) - a
        B = self.w[:, None, None] * self.A
        B = B - B.mean(0)
        spread = torch.einsum("nij,nik->jk", B, B)
        return float(dual.norm()) + self.D * math.sqrt(float(torch.linalg.eigvalsh(spread)[-1]))

    @cached_property
    def best_penalty(self) -> float:
        return self.H / (2 * math.sqrt(self.n) * self.D)

    def residuals(self, run: Run) -> Tensor:
        """F(xbar) - F* at every evaluation (the record of round t describes xbar^{t+1})."""
        return (
            torch.tensor([r.loss for r in run.history if r.loss is not None], dtype=torch.float64)
            - self.least
        )


def slope(t: Tensor, values: Tensor) -> float:
    """Least-squares slope of log values against log t."""
    x, y = t.double().log(), values.clamp(min=1e-15).log()
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())
