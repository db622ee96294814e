"""A new user's first two commands, over real processes. Run by ``bash scripts/test-deployment.sh``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")


@pytest.mark.deployment
def test_an_app_of_ones_own_runs_here(tmp_path: Path) -> None:
    def fedfw(*arguments: str) -> str:
        command = [sys.executable, "-m", "fedfw", "deploy", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        return done.stdout

    fedfw("init", "mine")
    project = tmp_path / "mine" / "pyproject.toml"
    text = project.read_text().replace("clients = 3", "clients = 2").replace("rounds = 5", "rounds = 2")
    project.write_text(text.replace('constraint = "ksparse:k=65,r=10"', 'constraint = "l2:3"'))
    task = tmp_path / "mine" / "federation" / "task.py"
    task.write_text(task.read_text().replace("parts[client]", "parts[client][:100]"))  # samples of his own
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}

    printed = fedfw("demo", "--app", "mine", "--out", "results")
    assert "on the set L2Ball(r=3): 650 parameters, 2 clients, 2 rounds" in printed
    assert re.search(r"^fedfw .* yes +yes$", printed, re.M)  # bits and bytes of the simulator
    assert "results/fedfw" in printed
    history = (tmp_path / "results" / "fedfw" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["participants"] for line in history] == [2, 2]
    assert (tmp_path / "results" / "fedfw" / "model.pt").is_file()
    after = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    assert before == after
