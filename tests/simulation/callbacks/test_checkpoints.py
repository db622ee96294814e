"""The run folder is brought up to date as the run goes, and gets model and plots at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedfw
from fedfw.rounds.folders import RunFolder
from fedfw.rounds.options import Options
from fedfw.rounds.records import History
from fedfw.simulation import Callback, Simulation
from fedfw.simulation.callbacks import Checkpoints
from fedfw.testing.known_quadratics import Quadratics

Q = Quadratics.on("l1")
ALGORITHM = fedfw.FedFW(Q.constraint, penalty=0.05)


def rounds_kept(folder: Path) -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("checkpoint-*.safetensors"))


def test_a_checkpoint_every_ten_rounds_and_at_the_end(tmp_path: Path) -> None:
    seen: list[list[int]] = []
    run = fedfw.simulate(
        Q.problem, ALGORITHM, rounds=23, out=tmp_path, callbacks=lambda s: seen.append(rounds_kept(tmp_path))
    )
    # A callback of the user comes before the checkpoint of its round.
    assert seen == [[]] * 10 + [[10]] * 10 + [[10, 20]] * 3
    assert rounds_kept(tmp_path) == [20, 23]
    assert run.out == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock",
        "checkpoint-00000020.safetensors",
        "checkpoint-00000023.safetensors",
        "history.jsonl",
        "model.pt",
        "plots.png",
    }
    assert (tmp_path / "plots.png").read_bytes().startswith(b"\x89PNG")
    model = torch.load(tmp_path / "model.pt", weights_only=True)
    assert torch.equal(model["x"], run.x)
    assert History.from_jsonl((tmp_path / "history.jsonl").read_text()).to_dict() == run.history.to_dict()


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("every", [1, 4])
def test_as_often_as_it_is_asked_for(every: int, tmp_path: Path) -> None:
    often = Checkpoints(RunFolder(tmp_path), every=every)
    Simulation(Q.problem, ALGORITHM, Options(rounds=10), callbacks=often).run()
    assert rounds_kept(tmp_path) == {1: [9, 10], 4: [8, 10]}[every]


@pytest.mark.usefixtures("no_plots")
def test_a_run_that_is_ended_early_is_kept_whole(tmp_path: Path) -> None:
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=23, out=tmp_path, callbacks=lambda s: s.t == 13)
    assert rounds_kept(tmp_path) == [10, 13]
    assert len(History.from_jsonl((tmp_path / "history.jsonl").read_text())) == len(run.history) == 13


@pytest.mark.usefixtures("no_plots")
def test_a_run_that_is_ended_before_a_round_is_kept_whole(tmp_path: Path) -> None:
    class Before(Callback):
        def before_round(self, simulation: Simulation) -> bool:
            return simulation.t == 13

    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=23, out=tmp_path, callbacks=Before())
    assert len(run.history) == 13
    assert rounds_kept(tmp_path) == [10, 13]
    assert len(History.from_jsonl((tmp_path / "history.jsonl").read_text())) == 13


@pytest.mark.usefixtures("no_plots")
def test_relaxed_clients_leave_the_model_that_lies_inside(tmp_path: Path) -> None:
    relax = dict.fromkeys(range(5), fedfw.L2Ball(4.0))
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=3, relax=relax, out=tmp_path)
    assert not Q.constraint.contains(run.x)
    assert Q.constraint.contains(run.feasible)
    assert torch.equal(torch.load(tmp_path / "model.pt", weights_only=True)["x"], run.feasible)
