"""The study of what privacy costs, on a small grid."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.files import DATA, needs

from fedfw.cli import main
from fedfw.config import RunConfig
from fedfw_reproduction import private_training

pytest.importorskip("dp_accounting")


@needs("libsvm")
def test_the_study_of_what_privacy_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        private_training, "PROBLEMS", {"mushrooms": ("mushrooms", "logistic", "l1:10")}
    )
    monkeypatch.setattr(private_training, "budgets", lambda scale: (1.0, math.inf))
    clip = ("clip", (0.5, 1.0))
    grid = (("rounds", (2,)), ("penalty", ("theory:1",)), clip)
    config = RunConfig.of(
        dataset="mushrooms",
        model="logistic",
        constraint="l1:10",
        partition="iid",
        algorithm="fedfw",
    )
    few = dict.fromkeys(
        (private_training.SELECTION, private_training.NOISE), (config, grid, "auto")
    )
    steps = (("rounds", (2,)), ("lr", (0.5,)), clip)
    few[private_training.DP_SGD] = (replace(config, algorithm="fedavg"), steps, "auto")
    monkeypatch.setattr(private_training, "methods", lambda name, scale: few)
    assert (
        main(["reproduce", "dp", "--quick", "--out", str(tmp_path), "--data-dir", str(DATA)]) == 0
    )
    page = (tmp_path / "dp-quick.html").read_text()
    assert page.count("<svg") == 1
    assert "Private selection has the least" in page
