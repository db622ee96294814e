"""The simulator: what it takes, what it gives back, and rounds in which little happens."""

from __future__ import annotations

import inspect

import pytest
import torch

import fedfw
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation, simulate
from fedfw.testing.known_quadratics import P, Quadratics


def test_everything_after_problem_and_algorithm_is_given_by_name() -> None:
    q = Quadratics.on("l1")
    with pytest.raises(TypeError, match="positional"):
        simulate(q.problem, fedfw.FedFW(q.constraint), 5)  # type: ignore[misc]
    kinds = {name: parameter.kind for name, parameter in inspect.signature(simulate).parameters.items()}
    assert [name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY] == [
        "problem",
        "algorithm",
    ]


def test_unknown_keywords_name_the_nearest() -> None:
    q = Quadratics.on("l1")
    with pytest.raises(
        TypeError, match=r"simulate has no option 'round' \(did you mean 'rounds'\?\), expected callbacks"
    ):
        simulate(q.problem, fedfw.FedFW(q.constraint), round=5)
    with pytest.raises(TypeError, match="simulate has no option 'penalty'"):  # it is the algorithm's
        simulate(q.problem, fedfw.FedFW(q.constraint), penalty=0.1)


def test_a_class_is_no_algorithm() -> None:
    with pytest.raises(TypeError, match="expected an algorithm with its set"):
        simulate(Quadratics.on("l2").problem, fedfw.FedFWPlus)  # type: ignore[arg-type]


def test_a_round_nobody_joins_changes_nothing() -> None:
    q = Quadratics.on("l1")
    points = []
    run = simulate(
        q.problem,
        fedfw.FedFWPlus(q.constraint, penalty=0.1),
        rounds=6,
        participation=lambda t: [] if t in (3, 4) else range(8),
        callbacks=lambda s: points.append(s.xbar.clone()),
    )
    assert torch.equal(points[1], points[3])
    assert not torch.equal(points[3], points[4])
    assert [r.participants for r in run.history] == [8, 8, 0, 0, 8, 8]
    idle = run.history[2]
    assert idle.bytes_up == idle.bytes_down == idle.evidence_up == idle.evidence_down == idle.bytes_dense == 0
    assert idle.loss == run.history[1].loss


def test_a_run_that_nobody_ever_joins() -> None:
    q = Quadratics.on("l1")
    for algorithm in (
        fedfw.FedFW(q.constraint, penalty=0.1),
        fedfw.FedFWAnchored(q.constraint),
        fedfw.FedAvg(q.constraint),
    ):
        run = simulate(q.problem, algorithm, rounds=3, participation=lambda t: [])
        assert torch.equal(run.x, q.start)
        assert run.history[-1].loss == pytest.approx(q.value(q.start))


def test_a_huge_penalty_names_client_and_round() -> None:
    q = Quadratics.on("l2")
    with pytest.raises(fedfw.NonFiniteError, match=r"round \d: NaN or infinity in the direction of client"):
        simulate(q.problem, fedfw.FedFW(q.constraint, penalty=1e308), rounds=3, eval_every=3)


def test_a_simulation_is_what_simulate_runs() -> None:
    q = Quadratics.on("l2")
    algorithm = fedfw.FedFWPlus(q.constraint, penalty=0.1, momentum="auto")
    simulation = Simulation(q.problem, algorithm, Options(rounds=7, participation=0.5, seed=3))
    assert simulation.t == 0
    assert len(simulation.history) == 0
    run = simulation.run()
    assert torch.equal(run.x, simulate(q.problem, algorithm, rounds=7, participation=0.5, seed=3).x)
    assert torch.equal(run.x, simulation.xbar)
    assert simulation.server is simulation.coordinator.server
    assert simulation.t == len(run.history) == 7
    assert simulation.now.t == 7
    assert run.stopped == "all that were asked for"
    assert run.algorithm.momentum == 0.0  # type: ignore[attr-defined]
    assert algorithm.momentum == "auto"
    assert set(simulation.clients) == {"x", "y"}
    assert simulation.clients["x"].shape == (8, P)
    assert simulation.best_bound == run.lower_bound
    assert "FedFW+ on L2Ball(r=1.0), 7 rounds" in repr(run)
    assert run.plan is simulation.plan


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
def test_the_given_problem_and_its_start_are_left_alone(name: str, dtype: torch.dtype) -> None:
    q = Quadratics.on("l1")
    problem = quadratic_problem(q.A.to(dtype), q.c.to(dtype), q.start.to(dtype))
    start = problem.start.clone()
    runs = [simulate(problem, fedfw.ALGORITHMS[name](q.constraint), rounds=4) for _ in range(2)]
    assert torch.equal(problem.start, start)
    assert torch.equal(runs[0].x, runs[1].x)
    assert runs[0].x.dtype == dtype


def test_evaluated_rounds_are_those_that_were_asked_for_and_the_last() -> None:
    q = Quadratics.on("l1")
    run = simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.1), rounds=8, eval_every=3)
    assert [r.round for r in run.history if r.loss is not None] == [3, 6, 8]
    seconds = run.history[2].seconds
    assert seconds is not None
    assert set(seconds) == {"gradient", "oracle", "projection", "evaluation", "rest"}
    assert seconds["evaluation"] > 0


def test_local_steps_are_the_same_steps_taken_one_by_one() -> None:
    q = Quadratics.on("l1", n=1)
    one = simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.0), rounds=30)
    three = simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.0), rounds=10, local_steps=3)
    assert torch.allclose(one.x, three.x, atol=1e-10)
    assert three.history[0].bytes_up < 3 * one.history[0].bytes_up + 2


def test_what_a_run_gives_back() -> None:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(9, 4, generator=generator), torch.arange(9) % 3) for _ in range(3)]
    problem = fedfw.Problem(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, data, test=data[0])
    run = simulate(problem, fedfw.FedFW(fedfw.L2Ball(2.0)), rounds=5)
    trained = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    assert torch.equal(trained, run.x)
    assert torch.equal(run.feasible, run.x)
    assert run.history[-1].accuracy == problem.test(run.x).accuracy
    assert run.history[-1].loss == pytest.approx(problem.value(run.x), rel=1e-5)
    assert (run.out, run.privacy, run.dense_sums) == (None, None, 0)
