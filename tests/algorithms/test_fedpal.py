"""The proximal augmented Lagrangian method: its steps written out, where it rests and where it converges."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import fedfw
from fedfw.algorithms.base import Server
from fedfw.deployment import Task
from fedfw.rounds.memory import EveryRow
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import SETS, P, Quadratics

from .test_baselines import DTYPES, WEIGHTS, digits_and_their_optimum, residual, typed, weighted


def minimised(value: Any, start: torch.Tensor) -> torch.Tensor:
    """The minimiser of a smooth strongly convex function, by torch's own optimizer."""
    x = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([x], max_iter=200, tolerance_grad=1e-13, tolerance_change=1e-16)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = value(x)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return x.detach()


LR, ETA, BETA, ROUNDS = 0.05, 0.3, 4.0, 7


def attending(t: int, everyone: bool, n: int) -> list[int]:
    return list(range(n)) if everyone else [t % n, (3 * t + 1) % n, (t + 5) % n]


def nearest(x: torch.Tensor) -> torch.Tensor:
    """In the ball of radius 1."""
    return x / x.norm().clamp(min=1.0)


@cache
def written_out(everyone: bool, every: int, K: int, weights: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The server's model and its multiplier after all rounds, (p,) each, in float64."""
    q, lr, eta, beta = weighted(weights, SETS["l2"]), LR, ETA, BETA
    A, c, w, n = q.A, q.c, q.w, q.n

    def far(x: torch.Tensor) -> torch.Tensor:
        """The square of the distance from the ball of radius 1."""
        return (x.norm() - 1).clamp(min=0).square()

    model = centre = q.start
    y = torch.zeros(P, dtype=torch.float64)
    x, z = q.start.repeat(n, 1), torch.zeros(n, P, dtype=torch.float64)
    share = 1 / ((n + 1) * beta)
    for t in range(1, ROUNDS + 1):
        for i in set(attending(t, everyone, n)):
            for _ in range(K):  # the linearised loss, with all else exact
                slope = n * w[i] * A[i] @ (x[i] - c[i])
                pulls = slope + n * share * (x[i] - centre) + z[i] + (x[i] - model) / eta
                x[i] = x[i] - pulls / (1 / lr + n * share + 1 / eta)
            z[i] = z[i] + (x[i] - model) / eta
        mean = (x + eta * z).mean(0)
        model = minimised(
            lambda v, mean=mean, centre=centre, y=y: (
                beta / 2 * far(v + y / beta)
                + share / 2 * (v - centre).square().sum()
                + (v - mean).square().sum() / (2 * eta)
            ),
            model,
        )
        if t % every == 0:
            y, centre = y + beta * (model - nearest(model + y / beta)), model
    return model, y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("everyone", [True, False])
def test_the_steps_are_those_that_are_written_out_here(
    everyone: bool, every: int, K: int, weights: str, dtype: torch.dtype
) -> None:
    """The server's problem is solved by an optimizer here, and by one projection there."""
    q = weighted(weights, SETS["l2"])
    model, y = written_out(everyone, every, K, weights)
    algorithm = fedfw.contrib.FedPAL(q.constraint, lr=LR, eta=ETA, beta=BETA, multiplier_every=every)
    options: dict[str, Any] = {"rounds": ROUNDS, "eval_every": ROUNDS, "local_steps": K}
    options["participation"] = lambda t: attending(t, everyone, q.n)
    seen: list[Server] = []
    run = fedfw.simulate(typed(q, dtype), algorithm, callbacks=lambda s: seen.append(s.server), **options)
    rough = 1e-7 if dtype == torch.float64 else 1e-4
    assert torch.allclose(seen[-1].vectors["w"].double(), model, atol=rough)
    assert torch.allclose(seen[-1].vectors["y"].double(), y, atol=10 * rough)
    assert torch.allclose(run.x.double(), nearest(model), atol=rough)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("name", SETS)
def test_the_minimiser_is_a_fixed_point(name: str, local_steps: int, every: int) -> None:
    q, eta = Quadratics.on(name), 0.3
    x, slope = q.optimum, q.gradients(q.optimum).sum(0)
    algorithm = fedfw.contrib.FedPAL(q.constraint, eta=eta, beta=2.0, multiplier_every=every)
    clients = {"x": x.repeat(q.n, 1), "z": -q.n * q.gradients(x)}
    vectors = {"mean": x - eta * slope, "w": x, "centre": x, "y": -slope}
    simulation = Simulation(q.problem, algorithm, Options(rounds=6, eval_every=6, local_steps=local_steps))
    simulation.coordinator.memory, simulation.coordinator.server = EveryRow(clients), Server(x, vectors)
    assert torch.allclose(simulation.run().x, x, atol=1e-7)
    for key, value in clients.items():
        assert torch.allclose(simulation.clients[key], value, atol=1e-6), key
    for key, value in vectors.items():
        assert torch.allclose(simulation.server.vectors[key], value, atol=1e-6), key


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("participation", [1.0, 3])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", SETS)
def test_converges_whoever_takes_part_and_with_local_steps(
    name: str, weights: str, participation: float, dtype: torch.dtype
) -> None:
    q = weighted(weights, SETS[name])
    options: dict[str, Any] = {"rounds": 200, "eval_every": 200, "participation": participation, "local_steps": 2}
    run = fedfw.simulate(typed(q, dtype), fedfw.contrib.FedPAL(q.constraint, eta=0.2, beta=5.0), **options)
    assert residual(q, run.x.double()) < (1e-6 if dtype == torch.float64 else 1e-4)
    assert q.constraint.contains(run.x)
    assert run.lower_bound is not None
    assert run.lower_bound <= q.least + (1e-9 if dtype == torch.float64 else 1e-5)  # rounded data are other data


@pytest.mark.parametrize("name", SETS)
def test_fewer_multipliers_come_to_the_same_point(name: str) -> None:
    q = Quadratics.on(name)
    algorithm = fedfw.contrib.FedPAL(q.constraint, eta=0.2, beta=5.0, multiplier_every=10)
    assert residual(q, fedfw.simulate(q.problem, algorithm, rounds=200, eval_every=200).x) < 1e-6


def test_on_the_digits_it_comes_near_the_optimum() -> None:
    problem, D, optimum = digits_and_their_optimum()
    loss = fedfw.simulate(problem, fedfw.contrib.FedPAL(D), rounds=100, eval_every=100).history[-1].loss
    assert loss is not None
    assert loss - optimum.value < 0.01 * (problem.value(problem.start) - optimum.value)


def test_it_is_not_deployed() -> None:
    with pytest.raises(ValueError, match="fedpal runs in simulations only"):
        Task(
            torch.nn.Linear(2, 1),
            torch.nn.functional.mse_loss,
            fedfw.contrib.FedPAL(fedfw.L2Ball(1.0)),
            lambda i: None,
            3,
        )
