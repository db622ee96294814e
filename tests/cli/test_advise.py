"""``fedfw advise``: text, JSON, another table, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedfw.advice import measured
from fedfw.cli import main


def test_the_advice_names_a_command_and_a_measured_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "l1:10"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "fedfw run --constraint l1:10 --algorithm fedfw" in said
    assert "atoms alone" in said
    assert any(f"Measured: {problem.title}: residual" in said for problem in measured().problems)


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "l1:10", "--sees", "gradients", "--differ", "little", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["flags"].startswith(f"--algorithm {told['algorithm']}")
    assert told["measured"]["bytes_up"] > 0
    assert told["why"]


def test_the_advised_command_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plots: None
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["advise", "l1:10", "--sees", "sums", "--json"]) == 0
    flags = json.loads(capsys.readouterr().out)["flags"].split()
    assert main(["run", "--constraint", "l1:10", *flags, "--rounds", "2"]) == 0


def test_another_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = measured().to_json()
    table["problems"] = [problem | {"title": "my own"} for problem in table["problems"]]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(table))
    assert main(["advise", "--table", str(file)]) == 0
    assert "my own" in capsys.readouterr().out
    file.write_text("nothing")
    assert main(["advise", "--table", str(file)]) == 2
    assert "mine.json is damaged" in capsys.readouterr().err


def test_a_set_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "l3:10"]) == 2
    assert "l3" in capsys.readouterr().err
