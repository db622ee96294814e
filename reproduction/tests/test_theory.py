"""The bounds of the theory with their constants, and the slopes that correct code meets."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.algorithms.paths import gaps_at, values_at

import fedfw
import fedfw.problems.quadratics
from fedfw_reproduction import theory
from fedfw_reproduction.known_quadratics import SETS, P, Quadratics, slope

# A curved set and one with corners by default; `pytest -m slow` has the others.
MINUTES_OF_THEM = [
    name if name in ("l1", "l2") else pytest.param(name, marks=pytest.mark.slow) for name in SETS
]


def models_of_all_rounds(
    q: Quadratics,
    algorithm: fedfw.Algorithm,
    rounds: int,
    problem: fedfw.Problem | None = None,
    **options: Any,
) -> tuple[torch.Tensor, fedfw.Run]:
    """xbar after every round, (rounds, p), and the run, which is evaluated once."""
    models: list[torch.Tensor] = []

    def keep(simulation: fedfw.simulation.Simulation) -> None:
        models.append(simulation.xbar.clone())

    run = fedfw.simulate(
        problem or q.problem, algorithm, rounds=rounds, eval_every=rounds, callbacks=keep, **options
    )
    assert len(models) == rounds
    return torch.stack(models), run


def residuals_of_all_rounds(
    q: Quadratics, algorithm: fedfw.Algorithm, rounds: int, **options: Any
) -> torch.Tensor:
    """F - F* after every round, worked out here from the models: an evaluation costs more than such
    a round.
    """
    models, _ = models_of_all_rounds(q, algorithm, rounds, **options)
    values = values_at(q, models)
    assert float(values[-1]) == pytest.approx(q.value(models[-1]), rel=1e-12)
    return values - q.least


def gaps_of_all_rounds(
    q: Quadratics, algorithm: fedfw.Algorithm, rounds: int, **options: Any
) -> torch.Tensor:
    """The Frank-Wolfe gap at xbar^1, ..., xbar^{T+1}, worked out here from the models with one call
    of the oracle.
    """
    models, run = models_of_all_rounds(q, algorithm, rounds, **options)
    gaps = gaps_at(q, torch.cat([q.start[None], models]))
    assert float(gaps[-1]) == pytest.approx(run.history[-1].gap, rel=1e-9)
    return gaps


@pytest.mark.parametrize("name", SETS)
def test_the_reference_optimum_agrees_with_scipy(name: str) -> None:
    q = Quadratics.on(name)
    # u - v with u, v >= 0 makes the l1 ball smooth; the other sets use u alone.
    split = name == "l1"

    def point(z: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(z[:P] - z[P:] if split else z)

    def value(z: np.ndarray) -> tuple[float, np.ndarray]:
        g = q.gradients(point(z)).sum(0).numpy()
        return q.value(point(z)), np.concatenate([g, -g]) if split else g

    size = 2 * P if split else P
    limits = {
        "l2": ((None, None), [{"type": "ineq", "fun": lambda z: 1 - z @ z}]),
        "l1": ((0, None), [{"type": "ineq", "fun": lambda z: 1 - z.sum()}]),
        "box": ((-0.5, 0.5), []),
        "simplex": ((0, None), [{"type": "eq", "fun": lambda z: 1 - z.sum()}]),
    }
    bounds, constraints = limits[name]
    options = {"maxiter": 2000, "ftol": 1e-14}
    found = minimize(
        value, np.full(size, 1 / size), jac=True, method="SLSQP", bounds=[bounds] * size, constraints=constraints,
        options=options,
    )  # fmt: skip
    assert q.least == pytest.approx(found.fun, abs=1e-8)


@pytest.mark.parametrize("name", MINUTES_OF_THEM)
def test_convex_bound_holds_every_round_for_any_penalty(name: str) -> None:
    """T1."""
    q = Quadratics.on(name)
    for multiple in (0.1, 1.0, 10.0):
        lam = multiple * q.best_penalty
        residuals = residuals_of_all_rounds(q, fedfw.FedFW(q.constraint, penalty=lam), 200)
        t = torch.arange(2, 202, dtype=torch.float64)
        assert bool((residuals <= theory.convex_bound(q, lam, t)).all())


@pytest.mark.parametrize("name", MINUTES_OF_THEM)
def test_convex_slopes(name: str) -> None:
    q = Quadratics.on(name)
    lam = 3 * q.best_penalty
    t = torch.arange(100, 1201, 5)
    for algorithm, steepest in ((fedfw.FedFW, -0.45), (fedfw.FedFWPlus, -0.7)):
        residuals = residuals_of_all_rounds(q, algorithm(q.constraint, penalty=lam), 1200)
        assert slope(t, residuals[t - 1]) <= steepest


@pytest.mark.parametrize("name", MINUTES_OF_THEM)
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_participation_bound_and_slope(name: str, p: float) -> None:
    """T1p, over six seeds."""
    q = Quadratics.on(name)
    lam = 3 * q.best_penalty
    algorithm = fedfw.FedFW(q.constraint, penalty=lam)
    long = residuals_of_all_rounds(q, algorithm, 1200, participation=p, seed=0)
    t = torch.arange(100, 1201, 10)
    assert slope(t, long[t - 1]) <= -0.5
    # Nothing in it depends on how many rounds there will be: the long run begins as one of 200
    # rounds does.
    others = [
        residuals_of_all_rounds(q, algorithm, 200, participation=p, seed=seed)
        for seed in range(1, 6)
    ]
    residuals = torch.stack([long[:200], *others])
    bound = theory.participation_bound(q, lam, p, torch.arange(2, 202, dtype=torch.float64))
    mean, error = residuals.mean(0), residuals.std(0) / math.sqrt(len(residuals))
    assert bool((mean <= bound + 3 * error).all())


@pytest.mark.parametrize("name", MINUTES_OF_THEM)
def test_nonconvex_bound_and_slope(name: str) -> None:
    """T2 on indefinite quadratics: the mean gap, and how the least gap falls with the horizon."""
    q = theory.indefinite(name)
    lam = q.best_penalty
    least, spread = [], theory.spread(q)
    horizons = (30, 100, 300, 1000)
    for T in horizons:
        algorithm = fedfw.FedFW(q.constraint, penalty=lam, momentum=0.0)
        gaps = gaps_of_all_rounds(q, algorithm, T)[:T]  # at xbar^1, ..., xbar^T
        assert float(gaps.mean()) <= theory.nonconvex_bound(q, lam, T, spread * T ** (-1 / 3))
        least.append(float(gaps.min()))
    assert slope(torch.tensor(horizons), torch.tensor(least, dtype=torch.float64)) <= -0.25


def test_nonconvex_bound_with_absentees() -> None:
    """T2p, over ten seeds."""
    q, p, T = theory.indefinite("l1"), 0.5, 300
    lam, K = q.best_penalty, 0.5 * 300 + 1
    bound = theory.nonconvex_bound(q, lam, K, theory.spread(q) * K ** (2 / 3) / (p * T))
    means = []
    for seed in range(10):
        algorithm = fedfw.FedFW(q.constraint, penalty=lam, momentum=0.0)
        means.append(
            float(gaps_of_all_rounds(q, algorithm, T, participation=p, seed=seed)[1:].mean())
        )
    assert sum(means) / len(means) <= bound


@pytest.mark.parametrize("name", MINUTES_OF_THEM)
def test_stochastic_bound_and_slope(name: str) -> None:
    """T3, over three seeds."""
    q, sigma = Quadratics.on(name), 1.0
    lam = 3 * q.best_penalty
    runs = []
    for seed in range(3):
        problem = fedfw.problems.quadratics.quadratic_problem(q.A, q.c, q.start)
        problem.losses = theory.NoisyLosses(q, sigma, seed)
        algorithm = fedfw.FedFWSto(q.constraint, penalty=lam)
        runs.append(residuals_of_all_rounds(q, algorithm, 500, problem=problem, batch_size=1))
    mean = torch.stack(runs).mean(0)
    t = torch.arange(2, 502, dtype=torch.float64)
    assert bool((mean <= theory.stochastic_bound(q, lam, sigma, t)).all())
    late = t >= 100
    assert slope(t[late], mean[late]) <= -0.30


@pytest.mark.parametrize("name", MINUTES_OF_THEM[:3])
@pytest.mark.parametrize("every", [1, 5, 20])
@pytest.mark.parametrize("gradient_at", ["xbar", "own"])
def test_anchored_bound_and_slope(name: str, every: int, gradient_at: str) -> None:
    q = Quadratics.on(name)
    algorithm = fedfw.FedFWAnchored(
        q.constraint, penalty=0.0, anchor_every=every, gradient_at=gradient_at
    )
    residuals = residuals_of_all_rounds(q, algorithm, 500)
    t = torch.arange(2, 502, dtype=torch.float64)
    bound = (2 + 24 * (every - 1)) * q.n * q.Lh * q.D**2 / t
    assert bool((residuals <= bound).all())
    late = torch.arange(100, 500)
    assert slope(late, residuals[late]) <= -0.9
