"""The bounds of the theory with their constants, against runs on quadratics that know them.

xbar^t is the model before round t, so a record of round t describes xbar^{t+1}. The bounds, with a
= w_i grad f_i, Lh = max w_i L_i, D the diameter, H how much the clients differ (see quadratics.py),
and E = F(x^1) - sum w_i min f_i:

    T1       F(xbar^t) - F* <= 2 n D^2 (Lh/t + lam/sqrt t) + H^2 / (2 lam sqrt t)
    T1p      the same in expectation with p(t-2)+2 for t, and (F(x^1)-F*) (2-2p)(2-p) / (a_{t-2} a_{t-1}) on top
    T2       mean gap over T rounds <= (E + n D^2 lam/2) T^-1/3 + n Lh D^2/2 T^-2/3 + (H + sqrt n Lh D)^2/(4 lam) T^-1/3
    T2p      the same in expectation with K = pT+1 for T, and E K^2/3 / (pT) for the first term
    T3       E F(xbar^t) - F* <= (9/8) sqrt(n Q) D (t+7)^-1/3 + (81/16) n D^2 (Lh/(t+7) + lam/sqrt(t+7))
             + H^2/(2 lam sqrt(t+7)),   Q = 16 sum w_i^2 sigma^2 + 40.5 n Lh^2 D^2

Those of anchored FedFW and of FedLMO are tests: test_theory.py and test_lmo_theory.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedfw import Algorithm
from fedfw.algorithms import FedFW, FedFWSto
from fedfw.certificates import frank_wolfe_gap
from fedfw.problems import ClientLosses
from fedfw.simulation import simulate
from fedfw_reproduction.known_quadratics import SETS, P, Quadratics, slope
from fedfw_reproduction.study import Effort, Study


def studies(effort: Effort) -> Iterator[tuple[str, Callable[[], list[Study]]]]:
    """Every study by its title, to be run in turn."""
    for name in SETS:
        yield f"T1 on {name}", partial(convex, name, effort)
        yield f"T1p on {name}", partial(participation, name, effort)
        yield f"T2 on {name}", partial(nonconvex, name, effort)
        yield f"T3 on {name}", partial(stochastic, name, effort)
    yield "T2p", partial(nonconvex_participation, effort)


# --- the bounds ---


def convex_bound(q: Quadratics, lam: float, t: Tensor) -> Tensor:
    """T1."""
    return 2 * q.n * q.D**2 * (q.Lh / t + lam / t.sqrt()) + q.H**2 / (2 * lam * t.sqrt())


def participation_bound(q: Quadratics, lam: float, p: float, t: Tensor) -> Tensor:
    """T1p."""
    last, before = (p * (t - back - 1) + 2 for back in (1, 2))
    initial = (q.value(q.start) - q.least) * (2 - 2 * p) * (2 - p) / (before * last)
    return initial + convex_bound(q, lam, last)


def nonconvex_bound(q: Quadratics, lam: float, K: float, first: float) -> float:
    """T2 with K = T and first = E T^-1/3; T2p with K = pT+1 and first = E K^2/3 / (pT)."""
    apart = q.H + math.sqrt(q.n) * q.Lh * q.D
    slow = q.n * q.D**2 * lam / 2 + apart**2 / (4 * lam)
    return float(first + slow * K ** (-1 / 3) + q.n * q.Lh * q.D**2 / 2 * K ** (-2 / 3))


def stochastic_bound(q: Quadratics, lam: float, sigma: float, t: Tensor) -> Tensor:
    """T3."""
    Q = 16 * float((q.w**2).sum()) * sigma**2 + 40.5 * q.n * q.Lh**2 * q.D**2
    s = t + 7
    noise = 9 / 8 * math.sqrt(q.n * Q) * q.D * s ** (-1 / 3)
    return (
        noise + 81 / 16 * q.n * q.D**2 * (q.Lh / s + lam / s.sqrt()) + q.H**2 / (2 * lam * s.sqrt())
    )


# --- the studies ---


def convex(name: str, effort: Effort) -> list[Study]:
    """T1 for three penalties; the slope is asked for at three times the best one."""
    q = Quadratics.on(name)
    found = []
    for multiple in (0.3, 3.0, 30.0):
        lam = multiple * q.best_penalty
        t, residuals = _residuals(q, FedFW(q.constraint, penalty=lam, momentum=0.0), effort)
        found.append(
            Study(
                bound="T1",
                setting=f"{name}, penalty {multiple:g} x best",
                t=t,
                measured=residuals,
                limit=convex_bound(q, lam, t),
                slope=_late_slope(t, residuals),
                exponent=-1 / 2,
                steepest=-0.45 if multiple == 3.0 else None,
            )
        )
    return found


def participation(name: str, effort: Effort) -> list[Study]:
    """T1p, means over seeds; the slope from one long run."""
    q = Quadratics.on(name)
    lam = 3 * q.best_penalty
    found = []
    for p in (0.1, 0.5):
        algorithm = FedFW(q.constraint, penalty=lam, momentum=0.0)
        short = replace(effort, rounds=max(400, effort.rounds // 10))
        runs = [_residuals(q, algorithm, short, p=p, seed=seed) for seed in range(effort.seeds)]
        t, stacked = runs[0][0], torch.stack([values for _, values in runs])
        late, long = _residuals(q, algorithm, effort, p=p)
        found.append(
            Study(
                bound="T1p",
                setting=f"{name}, p = {p:g}, {effort.seeds} seeds",
                t=t,
                measured=stacked.mean(0),
                limit=participation_bound(q, lam, p, t),
                slope=_late_slope(late, long),
                exponent=-1 / 2,
                steepest=-0.45,
                slack=3 * stacked.std(0) / math.sqrt(effort.seeds),
            )
        )
    return found


def nonconvex(name: str, effort: Effort) -> list[Study]:
    """T2 on indefinite quadratics: the mean gap at each horizon, and how the least one falls with
    it.
    """
    q = indefinite(name)
    lam = q.best_penalty
    horizons = torch.tensor(
        [T for T in (30, 100, 300, 1000, 3000) if effort.rounds >= T], dtype=torch.float64
    )
    means, least, limits = [], [], []
    for T in map(int, horizons):
        gaps = _gaps(q, T, every=max(1, T // 300))
        means.append(sum(gaps) / len(gaps))
        least.append(min(gaps))
        limits.append(nonconvex_bound(q, lam, T, spread(q) * T ** (-1 / 3)))
    measured = torch.tensor(means, dtype=torch.float64)
    falls = slope(horizons, torch.tensor(least, dtype=torch.float64))
    return [
        Study(
            bound="T2",
            setting=f"{name}, mean gap; slope of the least gap",
            t=horizons,
            measured=measured,
            limit=torch.tensor(limits, dtype=torch.float64),
            slope=falls,
            exponent=-1 / 3,
            steepest=-0.25,
        )
    ]


def nonconvex_participation(effort: Effort) -> list[Study]:
    """T2p, means over seeds."""
    q = indefinite("l1")
    lam = q.best_penalty
    found = []
    for p in (0.3, 0.7):
        horizons = torch.tensor(
            [T for T in (30, 100, 300) if effort.rounds >= T], dtype=torch.float64
        )
        means, errors, limits = [], [], []
        for T in map(int, horizons):
            runs = [_gaps(q, T, p=p, seed=seed) for seed in range(effort.seeds)]
            each = torch.tensor([sum(gaps) / len(gaps) for gaps in runs], dtype=torch.float64)
            means.append(float(each.mean()))
            errors.append(3 * float(each.std()) / math.sqrt(effort.seeds))
            K = p * T + 1
            limits.append(nonconvex_bound(q, lam, K, spread(q) * K ** (2 / 3) / (p * T)))
        measured, slack, limit = (
            torch.tensor(v, dtype=torch.float64) for v in (means, errors, limits)
        )
        found.append(
            Study(
                bound="T2p",
                setting=f"l1, p = {p:g}, mean gap, {effort.seeds} seeds",
                t=horizons,
                measured=measured,
                limit=limit,
                slope=slope(horizons, measured),
                exponent=-1 / 3,
                slack=slack,
            )
        )
    return found


def stochastic(name: str, effort: Effort) -> list[Study]:
    """T3, means over half as many seeds."""
    q, sigma, seeds = Quadratics.on(name), 1.0, max(2, effort.seeds // 2)
    lam = 3 * q.best_penalty
    runs = []
    for seed in range(seeds):
        problem = Quadratics.on(name).problem
        problem.losses = NoisyLosses(q, sigma, seed)
        algorithm = FedFWSto(q.constraint, penalty=lam)
        run = simulate(
            problem, algorithm, rounds=effort.rounds // 2, batch_size=1, eval_every=effort.every
        )
        runs.append(q.residuals(run))
    stacked = torch.stack(runs)
    t = _moments(effort.rounds // 2, effort.every)
    mean = stacked.mean(0)
    return [
        Study(
            bound="T3",
            setting=f"{name}, {seeds} seeds",
            t=t,
            measured=mean,
            limit=stochastic_bound(q, lam, sigma, t),
            slope=_late_slope(t, mean),
            exponent=-1 / 3,
            steepest=-0.30,
            slack=3 * stacked.std(0) / math.sqrt(seeds),
        )
    ]


# --- what they share ---


class NoisyLosses(ClientLosses):
    """Exact losses whose gradients have Gaussian noise of variance sigma^2, a fresh draw a call,
    from a seed.
    """

    def __init__(self, q: Quadratics, sigma: float, seed: int) -> None:
        self._exact, self.n = q.problem.losses, q.n
        self._sigma, self._generator = sigma, torch.Generator().manual_seed(seed)
        self.sizes = torch.ones(q.n, dtype=torch.int64)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        values, gradients = self._exact.value_and_gradient(x, who, None)
        if picks is None:  # evaluations are exact
            return values, gradients
        noise = torch.randn(x.shape, generator=self._generator, dtype=x.dtype)
        return values, gradients + self._sigma / math.sqrt(x.shape[1]) * noise

    def to(self, device: torch.device) -> NoisyLosses:
        return self


def indefinite(name: str) -> Quadratics:
    """Half of the clients are not convex."""
    q = Quadratics.on(name)
    A = q.A.clone()
    A[: q.n // 2] -= 6 * torch.eye(P, dtype=torch.float64)
    return Quadratics(q.constraint, A, q.c, convex=False)


def spread(q: Quadratics) -> float:
    """E, or a little more: F(x^1) less a lower bound on each client's own least loss over the set."""
    return q.value(q.start) - sum(_least_alone(q, i) for i in range(q.n))


def _least_alone(q: Quadratics, i: int) -> float:
    """w_i min over the set of f_i; for a concave part from below, at the set's farthest point."""
    eigenvalues = torch.linalg.eigvalsh(q.A[i])
    if float(eigenvalues[0]) >= 0:
        alone = Quadratics(q.constraint, q.A[i : i + 1], q.c[i : i + 1])
        return float(q.w[i]) * alone.least
    farthest = float(q.c[i].norm()) + q.D + float(q.start.norm())
    return float(q.w[i]) * float(eigenvalues[0]) * farthest**2 / 2


def _moments(rounds: int, every: int) -> Tensor:
    """The t of xbar^t that records at every ``every`` rounds describe."""
    return torch.arange(every, rounds + 1, every, dtype=torch.float64) + 1


def _residuals(
    q: Quadratics, algorithm: Algorithm, effort: Effort, *, p: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    run = simulate(
        q.problem,
        algorithm,
        rounds=effort.rounds,
        participation=p,
        seed=seed,
        eval_every=effort.every,
    )
    residuals = q.residuals(run)
    return _moments(effort.rounds, effort.every)[: len(residuals)], residuals


def _gaps(q: Quadratics, T: int, *, p: float = 1.0, seed: int = 0, every: int = 1) -> list[float]:
    """The Frank-Wolfe gap of FedFW at xbar^1 and at every ``every``-th of xbar^2, ..., xbar^T."""
    algorithm = FedFW(q.constraint, penalty=q.best_penalty, momentum=0.0)
    run = simulate(q.problem, algorithm, rounds=T, participation=p, seed=seed, eval_every=every)
    first = frank_wolfe_gap(q.constraint, q.start, q.gradients(q.start).sum(0))
    return [first, *(r.gap for r in run.history if r.gap is not None)][: max(1, T // every)]


def _late_slope(t: Tensor, values: Tensor) -> float:
    late = t >= 200
    return slope(t[late], values[late])
