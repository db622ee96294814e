"""Loggers: the numbers of every round, elsewhere and at once."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedfw
from fedfw.simulation.callbacks.loggers import numbers_of
from fedfw.testing.known_quadratics import Quadratics

pytestmark = pytest.mark.usefixtures("no_plots")

Q = Quadratics.on("l1")
ALGORITHM = fedfw.FedFW(Q.constraint, penalty=0.05)


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_rows_are_there_as_soon_as_their_round_is_done(tmp_path: Path) -> None:
    path, seen = tmp_path / "new" / "log.csv", []
    logger = fedfw.CSVLogger(path)
    callbacks = [logger, lambda simulation: seen.append(len(rows_of(path)))]
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=4, eval_every=2, callbacks=callbacks)
    assert seen == [1, 2, 3, 4]
    rows = rows_of(path)
    assert [row["bytes_up"] for row in rows] == [str(record.bytes_up) for record in run.history]
    assert [row["loss"] for row in rows] == ["" if r.loss is None else repr(r.loss) for r in run.history]
    assert float(rows[0]["seconds"]) == pytest.approx(sum((run.history[0].seconds or {}).values()))


def test_a_resumed_run_has_all_of_its_rows(tmp_path: Path) -> None:
    fedfw.simulate(Q.problem, ALGORITHM, rounds=3, out=tmp_path / "run")
    logger = fedfw.CSVLogger(tmp_path / "log.csv")
    fedfw.simulate(Q.problem, ALGORITHM, rounds=5, out=tmp_path / "run", resume=True, callbacks=logger)
    assert [row["round"] for row in rows_of(tmp_path / "log.csv")] == ["1", "2", "3", "4", "5"]


def test_tensorboard_and_mlflow_are_told_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    scalars: list[tuple[str, float, int]] = []
    metrics: list[tuple[dict[str, float], int]] = []

    def log_metrics(numbers: dict[str, float], step: int) -> None:
        metrics.append((numbers, step))

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(log_metrics=log_metrics))
    board = SimpleNamespace(add_scalar=lambda name, value, step: scalars.append((name, value, step)))
    callbacks = [fedfw.TensorBoardLogger(board), fedfw.MLflowLogger()]
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=2, callbacks=callbacks)
    wanted = [numbers_of(record) for record in run.history]
    assert [step for _, step in metrics] == [1, 2]
    assert [numbers | {"round": step} for numbers, step in metrics] == wanted
    assert {name: value for name, value, step in scalars if step == 2} | {"round": 2} == wanted[1]
    assert wanted[1]["loss"] == run.history[1].loss
    assert "accuracy" not in wanted[1]  # there is none


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("torch.utils.tensorboard", lambda: fedfw.TensorBoardLogger("log")),
        ("mlflow", fedfw.MLflowLogger),
    ],
)
def test_what_is_not_installed_is_named(package: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    name = package.rpartition(".")[2]
    with pytest.raises(ImportError, match=f"needs the package {name}: pip install {name}"):
        make()


def test_certified_shares_are_numbers_of_their_own() -> None:
    record = fedfw.Record(round=1, certified={"0.1": 0.5, "0.5": 0.25})
    assert numbers_of(record)["certified_0.5"] == 0.25
    assert "certified" not in numbers_of(record)
