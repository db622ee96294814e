"""The study of steps from curvature: what it calls near and worse, and that it runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedfw.cli.main import main
from fedfw_reproduction import reproduce
from fedfw_reproduction.figures import tasks_in
from fedfw_reproduction.protocols import FULL, QUICK
from fedfw_reproduction.steps import METHODS, PROBLEMS, TUNED, Row, cells, schedules_of


def row(theory: float, best: float, auto: float) -> Row:
    return Row(PROBLEMS[0], METHODS[0], theory, best, "convex", auto)


@pytest.mark.parametrize(
    ("theory", "best", "auto", "near", "worse"),
    [
        (0.5, 0.2, 0.22, True, False),
        (0.5, 0.2, 0.24, False, False),
        (0.2, 0.2, 0.225, True, True),
        (0.001, 0.001, 0.0029, True, True),  # 0.002 is near, and worse all the same
        (0.2, 0.1, 0.25, False, True),
    ],
)
def test_what_near_and_worse_are(
    theory: float, best: float, auto: float, near: bool, worse: bool
) -> None:
    made = row(theory, best, auto)
    assert (made.near, made.worse) == (near, worse)


def test_all_that_is_compared() -> None:
    made = schedules_of(PROBLEMS[0], METHODS[0], FULL)
    assert list(made) == [*TUNED, "auto"]
    assert len(TUNED) == 15
    assert len(tasks_in(cells(FULL))) == 2 * len(PROBLEMS) * len(METHODS) * 16
    assert len(set(tasks_in(cells(QUICK)))) == 2 + 2 * len(METHODS) * 4


def test_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "QUICK", replace(QUICK, rounds=4))
    assert main(["reproduce", "steps", "--quick", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "steps-quick.html").read_text()
    assert "digits, labels:3, l2:10" in page
    assert "best tuned" in page
