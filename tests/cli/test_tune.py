"""``fedfw tune`` and ``fedfw solve``: what a user types, sees and finds afterwards."""

import csv
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import fedfw
from fedfw.cli.main import main
from fedfw.cli.tune import parse_grid
from fedfw.config import RunConfig, grid_points, read_config
from fedfw.data import load_data
from fedfw.presets import ProblemOptions, make_problem
from fedfw.problems.linear import LinearLosses
from fedfw.tuning import search


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("no_plots")
def test_the_best_of_the_grid_is_what_run_reads(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--algorithm", "feddr", "--constraint", "l2:20", "--rounds", "30"]
    assert main(["tune", *flags, "--grid", "lr=theory:0.1,theory:8 alpha=1,1.9"]) == 0
    captured = capsys.readouterr()
    assert "best: lr=theory:8" in captured.out
    assert "4/4" in captured.err
    rows = list(csv.DictReader(Path("tuned-feddr.csv").read_text().splitlines()))
    assert len(rows) == 4
    best = min(rows, key=lambda row: float(row["held_out_loss"]))
    stored = read_config(Path("tuned-feddr.toml"))
    assert (stored.algorithm, stored.get("lr"), stored.get("alpha")) == (
        "feddr",
        best["lr"],
        float(best["alpha"]),
    )
    assert main(["run", "tuned-feddr.toml", "--out", "r", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["rounds"] == 30
    assert told["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("algorithm", "grid"),
    [
        ("fedavg", "local-steps=1,4 batch-size=23,46"),
        ("fedfw+", "local-steps=1,3"),
        ("fedfw-anchored", "anchor-every=1,2,5 batch-size=16"),
        ("fedfw-anchored", "anchor-every=1,5"),
        ("frank-wolfe", "momentum=0,0.9"),
    ],
)
def test_every_point_has_the_same_budget_of_gradients(
    algorithm: str, grid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted where the gradients are computed; the evaluations of the start and of the end come on
    top.
    """
    counted: list[float] = []
    gradient = LinearLosses.weighted

    def counting(
        self: LinearLosses,
        x: torch.Tensor,
        who: torch.Tensor,
        picks: torch.Tensor | None,
        *how: Any,
    ) -> Any:
        each = self.sizes[who] if picks is None else torch.full((len(who),), picks.shape[1])
        counted[-1] += float(each.sum())
        return gradient(self, x, who, picks, *how)

    penalty = 0.0 if "fedfw" in algorithm else None
    config = RunConfig.of(algorithm=algorithm, penalty=penalty)
    data = load_data("digits")
    problem = make_problem(data, ProblemOptions(partition="iid"), held_out=0.2)
    kept = float(problem.losses.sizes.sum())
    for number, values in enumerate(product(*parse_grid(grid).values())):
        counted.append(0.0)
        axes = {key: [value] for key, value in zip(parse_grid(grid), values, strict=True)}
        with monkeypatch.context() as patch:
            patch.setattr(LinearLosses, "weighted", counting)
            (trial,) = search(
                problem, [trial for _, trial in grid_points(config, data, axes)], 12.0
            )
        spent = counted[number] / kept - 2
        a_round = spent / trial.rounds
        assert 12 - a_round - 1 <= spent <= 12.6, (
            values,
            spent,
        )  # a round is not divided, an anchor comes at once


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--grid", "lr"], "grid 'lr', expected KEY=VALUE,VALUE"),
        (["--grid", "penalty=1 penalty=2"], "each key once"),
        (["--grid", "speed=1,2"], "grid: speed cannot vary"),
        (["--grid", "clients=5,10"], "grid: clients cannot vary"),
        (
            ["--grid", "local-steps=many"],
            "local-steps = 'many', expected a whole number of at least 1",
        ),
        (["--grid", "momentum=0,2"], "momentum = 2.0, expected"),
        (["--grid", "momentum=0", "--out", "t.csv"], "expected another ending such as .toml"),
        (["--grid", "momentum=0", "--budget", "nan"], "budget=nan"),
        (["--grid", "momentum=0", "--budget", "-5"], "budget=-5"),
        (["--grid", "local-steps=1,10", "--budget", "4"], "a round of fedfw+ costs more"),
        (["--algorithm", "feddr", "--grid", "momentum=0.5"], "momentum goes with fedfw"),
        (["--algorithm", "sgd"], "unknown algorithm 'sgd'"),
        (
            ["--dataset", "diabetes", "--by", "accuracy", "--grid", "penalty=1"],
            "expected --by loss",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["tune", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not list(Path().iterdir())  # nothing is left behind


def test_solve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "--constraint", "l1:5", "--tol", "0.01", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["lower_bound"] <= told["value"] < told["start_value"]
    assert told["uncertainty"] <= 0.01
    assert main(["solve", "--constraint", "l1:5", "--tol", "1e-9", "--max-steps", "3"]) == 1
    assert "gave up after 3 steps" in capsys.readouterr().err
    assert main(["solve", "--model", "mlp"]) == 2
    assert "known to be convex" in capsys.readouterr().err


def interrupt_after(monkeypatch: pytest.MonkeyPatch, trials: int) -> None:
    """As if somebody pressed Ctrl-C in the trial after so many."""
    run, done = fedfw.tuning._run, []

    def counted(problem: fedfw.Problem, point: fedfw.Trial) -> fedfw.Trial:
        if len(done) == trials:
            raise KeyboardInterrupt
        done.append(point)
        return run(problem, point)

    monkeypatch.setattr("fedfw.tuning._run", counted)


def test_an_interrupt_keeps_finished_trials_and_resume_runs_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [
        "tune",
        "--algorithm",
        "fedavg",
        "--rounds",
        "3",
        "--grid",
        "lr=0.01,0.1,0.3 local-steps=1,3",
    ]
    assert main([*command, "--out", "straight.toml"]) == 0
    straight = list(csv.DictReader(Path("straight.csv").read_text().splitlines()))
    with monkeypatch.context() as patch:
        interrupt_after(patch, 4)
        assert main([*command, "--out", "t.toml"]) == 130
    told = capsys.readouterr()
    assert told.err.splitlines()[-1] == (
        "fedfw tune: interrupted; the 4 of 6 trials that were finished are in t.csv; "
        "the same command with --resume runs the others"
    )
    assert not Path("t.toml").exists()
    kept = list(csv.DictReader(Path("t.csv").read_text().splitlines()))
    assert kept == straight[:4]
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)  # a third trial would be one too many
        assert main([*command, "--out", "t.toml", "--resume"]) == 0
    assert list(csv.DictReader(Path("t.csv").read_text().splitlines())) == straight
    assert Path("t.toml").read_text() == Path("straight.toml").read_text()
    longer = ["4" if word == "3" else word for word in command]
    assert main([*longer, "--out", "t.toml", "--resume"]) == 2
    assert "holds trials of another grid or configuration" in capsys.readouterr().err
    assert main([*command, "--out", "nothing.toml", "--resume"]) == 2
    assert "there is no nothing.csv with finished trials" in capsys.readouterr().err
