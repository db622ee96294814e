"""What is proven of FedLMO (docs/studies/theory.md), against runs on quadratics whose clients differ as
much as asked for.

xbar_t is the model before round t, d the diameter, L the largest smoothness of a client, a_t = 1 -
(1 - eta_t/K)^K, S_t those present, tau_i the round of client i's last visit, A_i the sum of eta_s
from s = tau_i to t-1. For beta = 0, full gradients and clients that all have been present before,
with gap_t the Frank-Wolfe gap of F at xbar_t:

    round   F(xbar_{t+1}) <= F(xbar_t) - a_t gap_t + R_t,
            R_t = a_t L d^2 (eta_t + max over S_t of A_i + sum_i w_i A_i) + a_t^2 L d^2/2
    rate    convex, everybody present, eta_t = 2/(t+1), t >= 2:
            F(xbar_t) - F* <= 21 L d^2 / (t+1) + 7.4 max(0, F(xbar_2) - F* - 7 L d^2) / t^2

For convex losses gap_t >= h_t = F(xbar_t) - F*, so h_{t+1} <= (1 - a_t) h_t + R_t. `remainders` has
R_t for momentum and for clients that were never present, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedfw.algorithms import FedLMO, ServerLMO
from fedfw.problems import Problem
from fedfw.problems.quadratics import random_quadratics
from fedfw.sets import NuclearBall
from fedfw.simulation import simulate
from fedfw_reproduction.known_quadratics import SETS, N, P, Quadratics

STUDIED = {name: SETS[name] for name in ("l1", "l2", "box")} | {
    "nuclear": NuclearBall(1.0).bind({"x": (3, 4)})
}
PROBLEMS = {
    "clients 1 apart": (1.0, True),
    "clients 30 apart": (30.0, True),
    "clients 30 apart and away": (30.0, False),
}
"""How far apart the clients' minimisers are, in radii of the set, and whether F's own is near the
set all the same.
"""
EXCHANGE = 1e-12
"""A first step that moves nobody: with everybody present that round hands every client its control
variate.
"""

Attendance = Callable[[int], Sequence[int]]
PATTERNS: dict[str, Attendance] = {
    "everybody": lambda t: range(N),
    "3 of 8": lambda t: torch.randperm(N, generator=torch.Generator().manual_seed(t))[:3].tolist(),
    "one at a time, 20 rounds each": lambda t: [(t // 20) % N],
}


@lru_cache(maxsize=64)  # its optimum is worked out once
def quadratics(
    name: str, apart: float, near: bool = True, weights: tuple[float, ...] | None = None
) -> Quadratics:
    """Clients whose minimisers are so far apart; where ``near``, F's own is where it is for clients
    1 apart.
    """
    q, reference = (
        Quadratics(STUDIED[name], *random_quadratics(N, P, 10.0, spread, seed=0), weights)
        for spread in (apart, 1.0)
    )
    return (
        Quadratics(q.constraint, q.A, q.c + _minimiser(reference) - _minimiser(q), weights)
        if near
        else q
    )


def _minimiser(q: Quadratics) -> Tensor:
    """Of F without the set, (p,)."""
    found: Tensor = torch.linalg.solve(
        torch.einsum("n,nij->ij", q.w, q.A), torch.einsum("n,nij,nj->i", q.w, q.A, q.c)
    )
    return found


@dataclass(frozen=True)
class Path:
    """A run as the theorem sees it.

    Parameters
    ----------
    points : Tensor
        (T+1, p), in float64: xbar_1, ..., xbar_{T+1}.
    etas : list of float
        eta_1, ..., eta_T.
    present : list of list of int
        S_1, ..., S_T.
    algorithm : FedLMO or ServerLMO
        What was run.
    local_steps : int
        K.
    """

    points: Tensor
    etas: list[float]
    present: list[list[int]]
    algorithm: FedLMO | ServerLMO
    local_steps: int

    @property
    def beta(self) -> float:
        """Return the weight of past momentum; with lazy renewals it begins anew in every round."""
        if isinstance(self.algorithm, FedLMO) and self.algorithm.renew_every > 1:
            return 0.0
        return self.algorithm.beta

    def renews(self, t: int) -> bool:
        """Return whether the control variates change in round t."""
        if isinstance(self.algorithm, ServerLMO):
            return self.algorithm.correction
        return self.algorithm.correction and (t - 1) % self.algorithm.renew_every == 0


def follow(
    q: Quadratics,
    algorithm: FedLMO | ServerLMO,
    attendance: Attendance,
    problem: Problem | None = None,
    **run: Any,
) -> Path:
    """Run FedLMO, by default on the problem of q, and keep the model of every round."""
    points, etas, K = [q.start], list[float](), run.get("local_steps", 1)
    present = [list(attendance(t)) for t in range(1, run["rounds"] + 1)]

    def look(simulation: Any) -> None:
        points.append(simulation.server.xbar.double())
        etas.append(simulation.rates.eta * K)

    own = {
        "participation": lambda t: present[t - 1],
        "eval_every": run["rounds"],
        "callbacks": look,
    }
    simulate(problem or q.problem, algorithm, **own, **run)
    return Path(torch.stack(points), etas, present, algorithm, K)


def exchanged(
    eta: Callable[[int], float], attendance: Attendance
) -> tuple[Callable[[int], float], Attendance]:
    """Step sizes and attendance after a first round in which everybody is present and nobody moves."""
    return (
        lambda t: EXCHANGE if t == 1 else eta(t - 1),
        lambda t: range(N) if t == 1 else attendance(t - 1),
    )


def frank_wolfe_steps(t: int) -> float:
    """2/(t+1)."""
    return 2 / (t + 1)


def remainders(q: Quadratics, path: Path) -> tuple[Tensor, Tensor]:
    """a_t and R_t, (T,) each; both are 0 in rounds that nobody joins.

    A client that was never present errs by ||grad f_i - grad F||, and while there are such, the
    others by ||grad F_V - grad F||, F_V the mean loss of those that were: both at xbar_t. With
    momentum E_t >= ||m_t - grad F(xbar_t)|| obeys E_{t+1} = beta^K E_t + (1 - beta^K) e_t + L d
    a_t, where e_t is the error without momentum.
    """
    K = path.local_steps
    d = q.D
    L = float(torch.linalg.eigvalsh(q.A).abs().max())
    beta = path.beta
    visited = torch.full(
        (q.n,), torch.nan, dtype=torch.float64
    )  # the sum of the steps before the client's last visit
    moved, E = 0.0, None
    steps, rests = [], []
    slopes = torch.einsum(
        "nij,tnj->tni", q.A, path.points[:, None] - q.c
    )  # of the f_i at all points
    for t, (gradients, eta, who) in enumerate(
        zip(slopes, path.etas, path.present, strict=False), start=1
    ):
        if not who:
            steps.append(0.0)
            rests.append(0.0)
            continue
        seen = ~visited.isnan()
        A = torch.where(seen, moved - visited, 0.0)
        shares = torch.where(seen, q.w, 0.0) / q.w[seen].sum().clamp(min=1e-300)
        off = gradients - q.w @ gradients
        off[seen] = shares @ gradients - q.w @ gradients
        errors = L * d * (eta + A + seen * (shares @ A)) + off.norm(dim=1)
        e = float(errors[who].max())
        E = e if E is None else E
        a = 1 - (1 - eta / K) ** K
        worst = max(beta**k * E + (1 - beta**k) * e for k in (1, K))
        steps.append(a)
        rests.append(a * d * worst + a**2 * L * d**2 / 2)
        E = beta**K * E + (1 - beta**K) * e + L * d * a
        if path.renews(t):
            visited[who] = moved
        moved += eta
    return torch.tensor(steps, dtype=torch.float64), torch.tensor(rests, dtype=torch.float64)


def round_bound(q: Quadratics, path: Path) -> tuple[Tensor, Tensor]:
    """F(xbar_{t+1}) - F* for t = 1, ..., T, and the theorem's bound on it, (T,) each."""
    a, R = remainders(q, path)
    points, away = path.points[:-1], path.points[:, None] - q.c
    values = (q.w * torch.einsum("tni,nij,tnj->tn", away, q.A, away)).sum(1) / 2
    gradients = torch.einsum("n,nij,tnj->ti", q.w, q.A, away[:-1])
    atoms = q.constraint.lmo(gradients, batch=True)
    gaps = (gradients * points).sum(1) - (
        atoms.dot(gradients) if atoms.bound is None else atoms.bound
    )
    return values[1:] - q.least, values[:-1] - a * gaps + R - q.least


def rate_bound(q: Quadratics, h_2: float, t: Tensor) -> Tensor:
    """The rate at t >= 2, of F(xbar_2) - F*."""
    unit = float(torch.linalg.eigvalsh(q.A)[:, -1].max()) * q.D**2
    return 21 * unit / (t + 1) + 7.4 * max(0.0, h_2 - 7 * unit) / t**2
