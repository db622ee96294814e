"""Fast-FedDA: the paper's sums beside our running average, where it rests and where it converges."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedfw
from fedfw.algorithms.base import Server
from fedfw.rounds.memory import EveryRow
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import SETS, P, Quadratics

from .test_baselines import DTYPES, WEIGHTS, digits_and_their_optimum, residual, typed, weighted


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("everyone", [True, False])
def test_the_sums_of_the_paper_give_the_same_points(everyone: bool, K: int, weights: str, dtype: torch.dtype) -> None:
    """The paper's two sums, of gradients and of points; absentees' sums are those of the server."""
    q, lr, strong, rounds = weighted(weights, SETS["l2"]), 0.04, 0.3, 12
    A, c, w, start = q.A.to(dtype), q.c.to(dtype), q.w.to(dtype), q.start.to(dtype)
    mu = strong / lr

    def point(g: torch.Tensor, points: torch.Tensor, steps: int) -> torch.Tensor:
        """The minimiser of <g, w> + sum_j mu/4 ||w - w_j||^2 + ||w - x^1||^2 / (2 lr) over the ball of radius 1."""
        best = (start / lr + mu / 2 * points - g) / (1 / lr + steps * mu / 2)
        return best / max(1.0, float(best.norm()))

    def attendance(t: int) -> list[int]:
        return list(range(q.n)) if everyone else [t % q.n, (3 * t + 1) % q.n, (t + 5) % q.n]

    g, points = torch.zeros(P, dtype=dtype), torch.zeros(P, dtype=dtype)
    for t in range(1, rounds + 1):
        sums = []
        present = sorted(set(attendance(t)))
        for i in present:
            own_g, own_points = g, points
            for k in range(K):
                x = point(own_g, own_points, (t - 1) * K + k)
                own_g, own_points = own_g + A[i] @ (x - c[i]), own_points + x
            sums.append(w[i] * torch.stack([own_g, own_points]))
        g, points = torch.stack(sums).sum(0) / w[present].sum()
    algorithm = fedfw.contrib.FastFedDA(q.constraint, lr=lr, strong=strong)
    options = {"rounds": rounds, "eval_every": rounds, "local_steps": K, "participation": attendance}
    run = fedfw.simulate(typed(q, dtype), algorithm, **options)
    expected = point(g, points, rounds * K)
    assert torch.allclose(run.x, expected, atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_strong_convexity_it_is_fedda(dtype: torch.dtype) -> None:
    q = weighted("unequal", SETS["l1"])
    options: dict[str, Any] = {"rounds": 15, "eval_every": 15, "local_steps": 3, "participation": 0.5, "seed": 2}
    fast, plain_steps = (
        fedfw.simulate(typed(q, dtype), algorithm, **options).x
        for algorithm in (
            fedfw.contrib.FastFedDA(q.constraint, lr=0.03, strong=0.0),
            fedfw.FedDA(q.constraint, lr=0.03),
        )
    )
    assert torch.allclose(fast, plain_steps, atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("name", SETS)
def test_the_minimiser_is_a_fixed_point(name: str) -> None:
    q, strong = Quadratics.on(name), 0.2
    algorithm = fedfw.contrib.FastFedDA(q.constraint, lr=0.05, strong=strong)
    u = q.optimum - 2 / (strong / 0.05) * q.gradients(q.optimum).sum(0)
    simulation = Simulation(q.problem, algorithm, Options(rounds=5, eval_every=5))
    simulation.coordinator.server = Server(q.optimum, {"u": u})
    simulation.coordinator.memory = EveryRow({"x": torch.zeros(q.n, 0, dtype=torch.float64)})
    run = simulation.run()
    assert torch.allclose(run.x, q.optimum, atol=1e-7)
    assert torch.allclose(simulation.server.vectors["u"], u, atol=1e-6)


@pytest.mark.parametrize("strong", [0.01, 0.1])
@pytest.mark.parametrize("name", SETS)
def test_converges_to_the_independent_optimum(name: str, strong: float) -> None:
    q = weighted("unequal", SETS[name])
    run = fedfw.simulate(q.problem, fedfw.contrib.FastFedDA(q.constraint, strong=strong), rounds=300, eval_every=300)
    assert residual(q, run.x) < 1e-5
    assert q.constraint.contains(run.x)


@pytest.mark.parametrize("name", ["l1", "box", "simplex"])
def test_shorter_steps_take_the_drift_and_the_noise_of_absentees_out(name: str) -> None:
    """Where FedDA's steps stay as long as they are, it stays away from the optimum of a polytope."""
    q = Quadratics.on(name)
    options: dict[str, Any] = {"rounds": 200, "eval_every": 200, "local_steps": 5, "participation": 3, "seed": 1}
    drift, fast = (
        residual(q, fedfw.simulate(q.problem, algorithm, **options).x)
        for algorithm in (
            fedfw.FedDA(q.constraint, lr=0.02),
            fedfw.contrib.FastFedDA(q.constraint, lr=0.02, strong=0.05),
        )
    )
    assert fast < drift / 3


def test_a_round_that_nobody_joins_moves_nothing() -> None:
    q = Quadratics.on("l2")
    algorithm = fedfw.contrib.FastFedDA(q.constraint, strong=0.2)
    seen: list[torch.Tensor] = []
    fedfw.simulate(
        q.problem,
        algorithm,
        rounds=4,
        participation=lambda t: [] if t in (2, 3) else range(q.n),
        callbacks=lambda simulation: seen.append(simulation.xbar.clone()),
    )
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[2], seen[3])


def test_on_the_digits_it_comes_near_the_optimum() -> None:
    problem, D, optimum = digits_and_their_optimum()
    loss = fedfw.simulate(problem, fedfw.contrib.FastFedDA(D), rounds=100, eval_every=100).history[-1].loss
    assert loss is not None
    assert loss - optimum.value < 0.002 * (problem.value(problem.start) - optimum.value)
