"""A grid search: the same budget for every point, the best by what was asked for, runs that blew up last."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import fedfw
from fedfw.algorithms.base import Aggregate, Message, Plan, Server, Setting, State
from fedfw.problems.linear import LinearLosses
from fedfw.rounds.options import Options
from fedfw.tuning import Trial, Tuning, affordable_rounds, points_of, search, tune, usual_grid

D = fedfw.L2Ball(5.0)


def problem(test: bool = True, network: bool = False) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(20, 4, generator=generator) + i, torch.randint(0, 3, (20,), generator=generator)) for i in range(4)
    ]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)) if network else nn.Linear(4, 3)
    return fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0] if test else None)


@dataclass(frozen=True)
class Bare(fedfw.Algorithm):
    """An algorithm without options and without a grid: one Frank-Wolfe step a client, averaged."""

    name: ClassVar[str] = "bare"

    def plan(self, setting: Setting) -> Plan:
        return Plan(setting.n, setting.constraint)

    def client_step(self, plan: Plan, state: State, message: Message, gradient: Any, lmo: Any) -> Any:
        _, a = gradient(message.xbar.expand_as(state["x"]).clone())
        return state, lmo(a), None

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        eta = 2 / (t + 1)
        return Server((1 - eta) * server.xbar + eta * aggregate.total / aggregate.count)


# --- the budget ---


def test_every_point_has_the_rounds_that_the_budget_pays_for() -> None:
    grid = {"local_steps": (1, 2, 5), "batch_size": (None, 5)}
    found = tune(problem(), fedfw.FedFW(D, penalty=0.01), grid=grid, rounds=10)
    passes = {(t.choice["local_steps"], t.choice["batch_size"]): t.rounds for t in found.trials}
    # A full gradient a step costs one, five of twenty samples a quarter.
    assert passes == {(1, None): 10, (1, 5): 40, (2, None): 5, (2, 5): 20, (5, None): 2, (5, 5): 8}
    assert [trial.choice for trial in found.trials] == points_of(grid)


def test_a_budget_of_its_own() -> None:
    found = tune(problem(), fedfw.FedAvg(D), grid={"lr": (0.1,), "local_steps": (1, 3)}, budget=7.9)
    assert [trial.rounds for trial in found.trials] == [7, 2]
    for budget in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"budget=.*, expected a positive number of gradients"):
            tune(problem(), fedfw.FedAvg(D), budget=budget)
    with pytest.raises(ValueError, match="budget=2: a round of fedavg costs more, expected a larger budget"):
        tune(problem(), fedfw.FedAvg(D), grid={"local_steps": (1, 3)}, budget=2)
    with pytest.raises(ValueError, match="rounds=100 with budget=8, which says how many rounds a trial has"):
        tune(problem(), fedfw.FedAvg(D), budget=8.0, rounds=100)


def test_anchors_are_paid_for() -> None:
    anchored = fedfw.FedFWAnchored(D, anchor_every=4)
    point = Trial({}, anchored, Options(rounds=1))
    assert affordable_rounds(problem(), point, 10.0) == 8  # 1.25 gradients a round
    assert affordable_rounds(problem(), replace(point, algorithm=fedfw.FedFW(D)), 10.0) == 10
    sampled = replace(point, options=Options(batch_size=5, local_steps=2))
    assert affordable_rounds(problem(), sampled, 3.0) == 4  # 2 / 4 + 1 / 4


def test_runs_take_no_more_gradients_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where gradients are computed; the evaluations of the start and the end are no steps."""
    counted: list[float] = []
    asked = LinearLosses.weighted

    def counting(self: LinearLosses, x: torch.Tensor, who: torch.Tensor, picks: torch.Tensor | None, *how: Any) -> Any:
        counted.append(1.0 if picks is None else picks.shape[1] / 20)
        return asked(self, x, who, picks, *how)

    monkeypatch.setattr(LinearLosses, "weighted", counting)
    spent = []

    def note(trial: Trial) -> None:
        spent.append(sum(counted))
        counted.clear()

    grid = {"local_steps": (1, 3), "batch_size": (None, 4)}
    tune(problem(), fedfw.FedFW(D, penalty=0.01), grid=grid, rounds=12, progress=note)
    assert spent == [pytest.approx(12 + 2)] * 4


# --- what is found ---


def test_the_best_is_the_one_that_a_run_of_its_own_confirms() -> None:
    grid = {"lr": (0.001, 0.3, 1.0), "mu": (0.0, 1.0)}
    for by in ("loss", "accuracy"):
        told: list[Trial] = []
        found = tune(problem(), fedfw.FedAvg(D), grid=grid, by=by, rounds=6, progress=told.append)  # type: ignore[arg-type]
        assert found.by == by
        assert told == found.trials
        assert len(found.trials) == 6
        for trial in found.trials:
            last = fedfw.simulate(problem(), fedfw.FedAvg(D, **trial.choice), rounds=6, eval_every=6).history[-1]
            assert trial.held_out_loss == pytest.approx(last.test_loss)
            assert trial.held_out_accuracy == last.accuracy
            assert trial.loss == pytest.approx(last.loss)
            assert trial.algorithm == fedfw.FedAvg(D, **trial.choice)
        losses = [trial.held_out_loss for trial in found.trials]
        accuracies = [trial.held_out_accuracy or 0.0 for trial in found.trials]
        if by == "loss":
            assert found.best.held_out_loss == min(losses)
        else:
            assert found.best.held_out_accuracy == max(accuracies)


def test_runs_that_blow_up_rank_last() -> None:
    """A step size at which numbers overflow, and a loss that is not finite without an error."""
    found = tune(problem(network=True), fedfw.FedAvg(D), grid={"lr": (1e38, 0.01, 9e37)}, rounds=5)
    assert [math.isinf(trial.held_out_loss) for trial in found.trials] == [True, False, True]
    assert found.best.choice == {"lr": 0.01}
    fine, blown = Trial({}, Bare(D), Options(), 0.5, 0.1), Trial({}, Bare(D), Options())
    for by in ("loss", "accuracy"):
        assert Tuning([blown, fine], by).best is fine
        assert blown.rank(by) == math.inf
    for loss in (math.nan, math.inf, -math.inf):
        assert replace(fine, held_out_loss=loss).rank("loss") == math.inf


def test_an_algorithm_without_options_is_tuned_as_a_single_point() -> None:
    assert Bare.grid(Setting(n=4, constraint=D, shape=(15,), convex=True)) == {}
    found = tune(problem(), Bare(D), rounds=5)
    assert [trial.choice for trial in found.trials] == [{}]
    assert found.best.held_out_loss < math.inf
    assert points_of({}) == [{}]
    steps = tune(problem(), Bare(D), grid={"participation": (0.5, 1.0)}, rounds=5)
    assert len(steps.trials) == 2


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
def test_every_algorithm_is_tuned_on_its_own_grid(name: str) -> None:
    algorithm = fedfw.ALGORITHMS[name](D)
    for there in (problem(), problem(network=True)):
        grid = usual_grid(there, algorithm, Options(rounds=2))
        found = tune(there, algorithm, rounds=2)
        assert len(found.trials) == math.prod(len(values) for values in grid.values())
        assert math.isfinite(found.best.held_out_loss)


# --- what is refused ---


def test_refusals() -> None:
    with pytest.raises(ValueError, match="grid: 'rounds' cannot vary here, expected one of schedule, penalty"):
        tune(problem(), fedfw.FedFW(D), grid={"rounds": (1, 2)})
    with pytest.raises(ValueError, match="grid: 'lr' cannot vary here"):
        tune(problem(), fedfw.FedFW(D), grid={"lr": (0.1,)})
    with pytest.raises(ValueError, match=r"penalty=-1\.0, expected"):
        tune(problem(), fedfw.FedFW(D), grid={"penalty": (0.1, -1.0)}, rounds=1)
    with pytest.raises(ValueError, match="this problem has none"):
        tune(problem(test=False), fedfw.FedFW(D), grid={"penalty": (0.1,)}, rounds=1)
    with pytest.raises(TypeError, match=r"tune has no option 'round' \(did you mean 'rounds'\?\)"):
        tune(problem(), fedfw.FedFW(D), round=3)
    with pytest.raises(TypeError, match="positional"):
        tune(problem(), fedfw.FedFW(D), {"penalty": (0.1,)})  # type: ignore[misc]


def test_a_bad_point_is_refused_before_any_run() -> None:
    ran: list[Trial] = []
    points = [Trial({}, fedfw.FedAvg(D), Options(local_steps=k)) for k in (1, 100)]
    with pytest.raises(ValueError, match="costs more"):
        search(problem(), points, 10.0, ran.append)
    assert ran == []


def test_private_runs_can_be_tuned() -> None:
    pytest.importorskip("dp_accounting")
    promise = fedfw.Privacy(5.0, 1e-5, not_private_seed=0)
    found = tune(problem(), fedfw.FedFW(D, penalty=0.01), grid={"momentum": (0.0, 0.9)}, rounds=3, privacy=promise)
    assert all(math.isnan(trial.loss) for trial in found.trials)  # it is kept secret
    assert all(math.isfinite(trial.held_out_loss) for trial in found.trials)


def test_progress_may_be_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfw.report.bars._PATIENCE", 0.0)
    found = tune(problem(), fedfw.FedAvg(D), grid={"lr": [0.1, 0.2]}, rounds=2, progress=True)
    assert len(found.trials) == 2
    told = capsys.readouterr().err
    assert "2/2" in told
    assert "lr=0.2: held-out loss" in told
    tune(problem(), fedfw.FedAvg(D), grid={"lr": [0.1]}, rounds=2)
    assert capsys.readouterr().err == ""
