"""Anchored FedFW: clients that differ much, anchors when the gap asks for them, and compressed anchors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

import fedfw
from fedfw.algorithms.anchored import FIRST_WAIT, LONGEST_WAIT, PROGRESS, SHORTEST_WAIT
from fedfw.problems.quadratics import quadratic_problem, random_quadratics
from fedfw.simulation.simulator import Simulation

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
N, P = 6, 40
D = fedfw.L1Ball(2.0)


def quadratics(dtype: torch.dtype, weights: list[float] | None = None) -> fedfw.Problem:
    A, c = random_quadratics(N, P, 10.0, 1.0, 0)
    return quadratic_problem(A.to(dtype), c.to(dtype), torch.zeros(P, dtype=dtype), weights=weights)


@cache
def synthetic() -> tuple[fedfw.Problem, float]:
    """Clients whose data differ much, and the optimum on l1:10."""
    problem = fedfw.load_problem("synthetic:1,1", clients=10)
    return problem, fedfw.solve(problem, fedfw.L1Ball(10.0), tol=0.01).value


def loss(algorithm: fedfw.Algorithm) -> float:
    found = fedfw.simulate(synthetic()[0], algorithm, rounds=100, eval_every=100).history[-1].loss
    assert found is not None
    return found - synthetic()[1]


# --- clients that differ much ---


def test_clients_that_differ_much_do_not_run_away() -> None:
    """Gradients at the clients' own points end above FedFW+, which sends atoms alone; gradients at xbar far below."""
    ball = fedfw.L1Ball(10.0)
    plus = min(loss(fedfw.FedFWPlus(ball, momentum=0.9, penalty=p)) for p in ("auto", "auto:3"))
    own = loss(fedfw.FedFWAnchored(ball, momentum=0.9, penalty=0.0, anchor_every=20, gradient_at="own"))
    assert own > plus
    assert loss(fedfw.FedFWAnchored(ball, momentum=0.9, anchor_every=20)) < 0.8 * plus
    assert loss(fedfw.FedFWAnchored(ball, momentum=0.9)) < 0.5 * plus


@DTYPES
def test_directions_add_up_to_the_gradient_at_the_model(dtype: torch.dtype) -> None:
    """In every round, with anchors long ago and clients apart; so the oracle is misled by no client's own point."""
    problem, seen = quadratics(dtype), []

    class Watched(fedfw.FedFWAnchored):
        def direction(self, plan: Any, state: Any, message: Any, a: Any, rates: Any) -> Any:
            state, g = super().direction(plan, state, message, a, rates)
            gradient = problem.value_and_gradient(message.xbar.to(dtype))[1]
            if bool(a.any()):  # else it is asked for what is added to gradients, for the certificate
                seen.append(float((g.sum(0) - gradient).norm() / gradient.norm()))
            return state, g

    fedfw.simulate(problem, Watched(D, penalty=0.1, anchor_every=50), rounds=30, eval_every=30)
    assert len(seen) == 30
    assert max(seen) < (1e-9 if dtype == torch.float64 else 1e-3)


# --- anchors when they are needed ---


@DTYPES
def test_anchors_come_as_their_gaps_say(dtype: torch.dtype) -> None:
    run = fedfw.simulate(quadratics(dtype), fedfw.FedFWAnchored(D, penalty=0.0), rounds=150, eval_every=150)
    told = [(r.round, r.anchor_gap) for r in run.history if r.anchor_gap is not None]
    t, wait, before, last = 1, FIRST_WAIT / 2, float("inf"), 1
    for number, gap in told:
        assert number == t
        assert gap is not None
        fell = gap < before * (last / t) ** PROGRESS
        wait = min(2 * wait, LONGEST_WAIT) if fell else max(wait // 2, SHORTEST_WAIT)
        last, t, before = t, t + int(wait), gap
    assert t > 150
    waits = {after - number for (number, _), (after, _) in pairwise(told)}
    assert len(waits) > 2


# --- compressed anchors ---


@DTYPES
@pytest.mark.parametrize("weights", [None, [0.3, 0.05, 0.2, 0.25, 0.1, 0.1]])
@pytest.mark.parametrize("attendance", [lambda t: range(N), lambda t: range(N) if t < 3 else [t % N, (t + 2) % N]])
def test_compressed_duals_add_up_to_what_the_server_knows(
    attendance: Callable[[int], Any], weights: list[float] | None, dtype: torch.dtype
) -> None:
    """y_i = A - h_i of those present add up to zero, as without compression, and ybar is the mean of all y_i."""

    def watch(simulation: Simulation) -> None:
        memory = simulation.coordinator.memory.gather(torch.arange(N))
        ybar, mean = simulation.server.vectors["ybar"], memory["y"].mean(0)
        scale = float(memory["y"].norm())
        assert float((ybar - mean).norm()) <= (1e-12 if dtype == torch.float64 else 1e-5) * scale
        assert float((simulation.server.xbar - memory["x"].mean(0)).norm()) < 1e-5

    algorithm = fedfw.FedFWAnchored(D, penalty=0.1, anchor_every=2, compress="bits:4")
    options: dict[str, Any] = {"rounds": 12, "eval_every": 12, "participation": attendance}
    fedfw.simulate(quadratics(dtype, weights), algorithm, callbacks=watch, **options)


@DTYPES
def test_what_an_anchor_loses_the_next_ones_make_up_for(dtype: torch.dtype) -> None:
    """h_i goes to the gradient at xbar, although every single message has 2 bits a number."""
    problem, apart = quadratics(dtype), []

    def watch(simulation: Simulation) -> None:
        if simulation.now.gathered is not None:
            h = simulation.coordinator.memory.gather(torch.arange(N))["h"]
            before = simulation.now.before.xbar.to(dtype)
            exact = problem.value_and_gradient(before)[1]
            apart.append(float((h.sum(0) - exact).norm() / exact.norm()))

    algorithm = fedfw.FedFWAnchored(D, penalty=0.0, anchor_every=1, compress="bits:2")
    fedfw.simulate(problem, algorithm, rounds=60, eval_every=60, callbacks=watch)
    assert apart[0] > 0.1
    assert apart[-1] < 0.1 * apart[0]


@DTYPES
def test_compressed_anchors_prove_nothing_that_is_false(dtype: torch.dtype) -> None:
    """Their gaps are not exact, so none is told; what clients prove in other ways holds as ever."""
    problem = quadratics(dtype)
    best = fedfw.solve(problem, D, tol=1e-7 if dtype == torch.float64 else 1e-4)
    plain, short = (
        fedfw.simulate(problem, fedfw.FedFWAnchored(D, penalty=0.0, anchor_every=5, compress=how), rounds=100)
        for how in ("none", "bits:4")
    )
    assert [r.round for r in plain.history if r.anchor_gap is not None] == [*range(1, 101, 5)]
    assert not [r for r in short.history if r.anchor_gap is not None]
    bounds = [r.lower_bound for r in short.history if r.lower_bound is not None]
    assert bounds
    assert max(bounds) <= best.value + 1e-6 * (1 + abs(best.value))
    assert short.history[-1].loss - best.value < 0.02 * (best.start_value - best.value)
    up = [sum(r.bytes_up for r in run.history) for run in (plain, short)]
    assert up[1] < 0.6 * up[0]
