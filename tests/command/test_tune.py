"""``fedfw tune`` and ``fedfw solve``: what a user types, sees and finds afterwards."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from fedfw.cli import main
from fedfw.command.config import read_config
from fedfw.command.tune import GRIDS, parse_grid
from fedfw.data import load_data
from fedfw.tasks import make_problem


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_best_of_the_grid_is_what_run_reads(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--algorithm", "feddr", "--constraint", "l2:20", "--rounds", "30"]
    assert main(["tune", *flags, "--grid", "lr=auto:0.1,auto:8 alpha=1,1.9"]) == 0
    captured = capsys.readouterr()
    assert "best: lr=auto:8" in captured.out
    assert "4/4" in captured.err
    rows = list(csv.DictReader(Path("tuned-feddr.csv").read_text().splitlines()))
    assert len(rows) == 4
    best = min(rows, key=lambda row: float(row["held_out_loss"]))
    stored = read_config(Path("tuned-feddr.toml"))
    assert (stored.algorithm, stored.lr, stored.alpha) == ("feddr", best["lr"], float(best["alpha"]))
    assert main(["run", "tuned-feddr.toml", "--out", "r", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["rounds"] == 30
    assert told["accuracy"] > 0.8


def test_every_point_has_the_same_budget_of_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--grid", "local-steps=1,4 batch-size=23,46", "--budget", "10"]
    assert main(["tune", "--algorithm", "fedavg", "--out", "t.toml", *grid]) == 0
    rows = list(csv.DictReader(Path("t.csv").read_text().splitlines()))
    spent = [int(r["rounds"]) * int(r["local-steps"]) * int(r["batch-size"]) for r in rows]
    assert len(rows) == 4
    assert max(spent) - min(spent) <= 4 * 46  # a round is not divided
    kept = 1437 * 0.8 / 10  # samples of a client that it does not lend
    assert min(spent) == pytest.approx(10 * kept, rel=0.1)


def test_the_test_data_are_not_looked_at() -> None:
    data = load_data("digits")
    problem = make_problem(data, "mclr", 10, "labels:3", held_out=0.2)
    assert problem.test_data is not None
    assert problem.losses.sizes is not None
    lent, kept = len(problem.test_data[0]), int(problem.losses.sizes.sum())
    assert lent + kept == len(data.train)
    assert 0.15 < lent / (lent + kept) <= 0.2
    train, test = ({tuple(row) for row in part.take()[0].flatten(1).tolist()} for part in (data.train, data.test))
    lent_rows = {tuple(row) for row in problem.test_data[0].tolist()}
    assert lent_rows <= train
    assert len(lent_rows & test) <= len(train & test)
    again = make_problem(data, "mclr", 10, "labels:3", held_out=0.2)
    assert again.test_data is not None
    assert torch.equal(problem.test_data[0], again.test_data[0])


def test_runs_that_blow_up_do_not_win(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--dataset", "diabetes", "--algorithm", "fedavg", "--constraint", "l2:1e30", "--rounds", "200"]
    assert main(["tune", *flags, "--grid", "lr=auto,auto:1000"]) == 0
    out = capsys.readouterr().out
    assert "best: lr=auto " in out
    assert main(["tune", *flags, "--grid", "lr=auto:1000"]) == 2
    assert "no point of the grid gave a finite result" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--grid", "lr"], "grid 'lr', expected KEY=VALUE,VALUE"),
        (["--grid", "penalty=1 penalty=2"], "each key once"),
        (["--grid", "speed=1,2"], "unknown key 'speed'"),
        (["--grid", "rounds=many"], "rounds = 'many', expected int"),
        (["--algorithm", "feddr", "--grid", "momentum=0.5"], "momentum goes with fedfw"),
        (["--algorithm", "sgd"], "unknown algorithm 'sgd'"),
        (["--dataset", "diabetes", "--by", "accuracy", "--grid", "penalty=1"], "expected --by loss"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert main(["tune", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not list(Path().iterdir())  # nothing is left behind


def test_grids_are_small_and_of_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for algorithm, axes in GRIDS.items():
        points = 1
        for values in axes.values():
            points *= len(values)
        assert points <= 12, algorithm
    assert parse_grid("lr=auto:2,0.5 local_steps=1") == {"lr": ["auto:2", "0.5"], "local-steps": ["1"]}


def test_solve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "--constraint", "l1:5", "--tol", "0.01", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["lower_bound"] <= told["value"] < told["start_value"]
    assert told["uncertainty"] <= 0.01
    assert main(["solve", "--model", "mlp"]) == 2
    assert "known to be convex" in capsys.readouterr().err


def test_models_and_data_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert "two hidden layers" in capsys.readouterr().out
    assert main(["data", "list"]) == 0
    assert "fashion-mnist" in capsys.readouterr().out
