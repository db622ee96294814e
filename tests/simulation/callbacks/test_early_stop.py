"""A run ends when it has proven that it is good enough, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedfw
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import Quadratics

pytestmark = pytest.mark.usefixtures("no_plots")


def test_tolerance_stops_with_a_proof(tmp_path: Path) -> None:
    q = Quadratics.on("simplex")
    algorithm = fedfw.FedFWAnchored(q.constraint, anchor_every=5)
    run = fedfw.simulate(q.problem, algorithm, rounds=5000, tol=0.01, out=tmp_path)
    assert len(run.history) < 5000
    assert run.stopped == "within tol=0.01 of the optimum"
    assert run.history[-1].loss is not None
    assert run.history[-1].loss - q.least <= 0.01
    again = fedfw.simulate(q.problem, algorithm, rounds=5000, tol=0.01, out=tmp_path, resume=True)
    assert len(again.history) == len(run.history)
    assert torch.equal(again.x, run.x)
    assert again.stopped == run.stopped


@pytest.mark.parametrize("name", ["fedfw", "fedfw+", "frank-wolfe", "fedavg"])
def test_the_run_goes_on_until_the_bound_is_within_the_tolerance(name: str) -> None:
    q = Quadratics.on("box")
    algorithm = fedfw.ALGORITHMS[name](q.constraint, **({"penalty": q.best_penalty} if "fedfw" in name else {}))
    seen = []

    def watch(simulation: Simulation) -> None:
        loss, bound = simulation.history[-1].loss, simulation.best_bound
        assert loss is not None
        assert bound is not None
        seen.append(loss - bound)

    tol = 0.3 if name == "fedfw" else 0.1
    run = fedfw.simulate(q.problem, algorithm, rounds=3000, tol=tol, callbacks=watch)
    assert run.stopped == f"within tol={tol:g} of the optimum"
    assert seen[-1] <= tol < min(seen[:-1])
    assert q.value(run.x) - q.least <= tol


def test_rounds_that_are_not_evaluated_do_not_end_it() -> None:
    q = Quadratics.on("box")
    run = fedfw.simulate(q.problem, fedfw.FedAvg(q.constraint), rounds=300, tol=0.05, eval_every=7)
    assert len(run.history) % 7 == 0
    assert "within tol" in run.stopped


def test_with_relaxed_clients_the_model_that_is_returned_counts() -> None:
    """xbar may be outside of the set and better than anything inside."""
    q = Quadratics.on("l1")
    relax = dict.fromkeys(range(3), fedfw.L2Ball(1.0))
    algorithm = fedfw.FedFW(q.constraint, penalty=3 * q.best_penalty)
    run = fedfw.simulate(q.problem, algorithm, rounds=3000, relax=relax, tol=2.0)
    assert "within tol" in run.stopped
    assert q.value(run.feasible) - q.least <= 2.0
    assert q.constraint.contains(run.feasible)
