"""Error feedback: memories follow what is sent on both sides, absentees keep theirs, and methods
reach the optimum.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

import fedfw
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.client_steps import follow, split
from fedfw.simulation import Simulation
from fedfw_reproduction.known_quadratics import SETS, Quadratics

DTYPES = [torch.float32, torch.float64]
COMPRESSORS = ["topk:1", "bits:2", "atoms:1"]


def problem(q: Quadratics, dtype: torch.dtype) -> fedfw.Problem:
    return quadratic_problem(q.A.to(dtype), q.c.to(dtype), q.start.to(dtype))


def residual(q: Quadratics, x: torch.Tensor) -> float:
    return (q.value(x.double()) - q.least) / (q.value(q.start) - q.least)


def compressed(D: fedfw.ConstraintSet, how: str) -> list[fedfw.Algorithm]:
    return [
        fedfw.FedPGD(D, compress=how),
        fedfw.FedPGD(D, compress=how, extrapolation="nesterov", lr="auto:0.3"),
        fedfw.FedAvg(D, compress=how),
        fedfw.FedAvg(D, mu=1.0, compress=how),
        fedfw.FrankWolfe(D, momentum=0.5, compress=how),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("how", COMPRESSORS)
def test_both_sides_hold_the_same_memories_and_the_server_their_sum(
    how: str, participation: float, dtype: torch.dtype
) -> None:
    q = Quadratics.on("l1")

    def watch(simulation: Simulation) -> None:
        now = simulation.now
        coordinator = simulation.coordinator
        for upload, before in zip(now.uploads, now.states, strict=True):
            assert now.message is not None
            assert upload.after is not None
            names = coordinator.shared_names
            state = split(before, names)
            followed, _ = follow(
                simulation.method,
                now.exchange,
                simulation.run_info,
                state,
                now.message,
                upload.sent,
            )
            after = split(upload.after, names)
            assert followed.estimates.keys() == after.estimates.keys() != set()
            for name, h in followed.estimates.items():
                assert torch.equal(h, after.estimates[name])
        for name, total in simulation.server.estimates.items():
            h = simulation.clients[f"h.{name}"]
            size = float(h.abs().max())
            assert float((h.sum(0) - total).abs().max()) <= 1e-12 * size

    for algorithm in compressed(fedfw.L1Ball(1.0), how):
        options: dict[str, Any] = {"rounds": 30, "eval_every": 30, "participation": participation}
        run = fedfw.simulate(problem(q, dtype), algorithm, callbacks=watch, **options)
        assert run.x.dtype == dtype
        assert fedfw.L1Ball(1.0).contains(run.x)


@pytest.mark.parametrize("name", ["l1", "l2"])
@pytest.mark.parametrize("how", ["topk:2", "bits:2"])
def test_compressed_gradients_reach_the_optimum(name: str, how: str) -> None:
    """What messages lose dies out: error feedback has no error left, unlike compression alone."""
    q = Quadratics.on(name)
    for algorithm in compressed(q.constraint, how)[:4]:
        slow = replace(algorithm, lr="auto:0.2")
        run = fedfw.simulate(q.problem, slow, rounds=150, eval_every=150)
        assert residual(q, run.x) < 1e-4, algorithm
    oracle = fedfw.FrankWolfe(q.constraint, compress=how)
    assert residual(q, fedfw.simulate(q.problem, oracle, rounds=150, eval_every=150).x) < 0.01


@pytest.mark.parametrize("name", SETS)
def test_extrapolation_needs_fewer_rounds(name: str) -> None:
    q = Quadratics.on(name)
    plain = residual(
        q, fedfw.simulate(q.problem, fedfw.FedPGD(q.constraint), rounds=40, eval_every=40).x
    )
    seen: list[torch.Tensor] = []
    algorithm = fedfw.FedPGD(q.constraint, extrapolation="nesterov")
    options: dict[str, Any] = {
        "rounds": 150,
        "eval_every": 150,
        "callbacks": lambda s: seen.append(s.xbar.clone()),
    }
    run = fedfw.simulate(q.problem, algorithm, **options)
    assert residual(q, seen[40 - 1]) <= max(plain, 1e-9)
    assert residual(q, run.x) < 1e-9


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_goes_down_can_be_compressed_and_the_optimum_is_reached(dtype: torch.dtype) -> None:
    q = Quadratics.on("l2")
    for algorithm in (
        fedfw.FedPGD(q.constraint, lr="auto:0.3", compress_down="topk:2"),
        fedfw.FedPGD(q.constraint, lr="auto:0.1", compress="topk:2", compress_down="topk:2"),
        fedfw.FedPGD(q.constraint, lr="auto:0.1", extrapolation="nesterov", compress_down="topk:4"),
        fedfw.FedAvg(q.constraint, lr="auto:0.3", compress_down="topk:2"),
    ):
        run = fedfw.simulate(problem(q, dtype), algorithm, rounds=150, eval_every=150)
        assert residual(q, run.x) < 1e-4, algorithm
        assert q.constraint.contains(run.x)
    oracles = (fedfw.FrankWolfe(q.constraint, compress_down=down) for down in ("none", "topk:2"))
    dense, short = (
        fedfw.simulate(problem(q, dtype), one, rounds=150, eval_every=150) for one in oracles
    )
    assert residual(q, short.x) < 0.05
    assert short.history.total("bytes_down") < dense.history.total("bytes_down")
