"""The command line prints what the library measures."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import fedfw
from fedfw.cli.main import main


def test_sets_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sets", "--shape", "10x785", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["sets"]}
    assert set(rows) == set(fedfw.SETS)
    assert rows["l1"]["bytes"] == 3
    assert rows["l2"]["strongly_convex"]
    assert "square" in rows["birkhoff"]["note"]


def test_sets_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sets", "--shape", "6x6"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in fedfw.SETS)
    assert "No example" not in out


def test_bad_shape_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sets", "--shape", "10xcat"])
    assert "expected whole numbers joined by x" in capsys.readouterr().err


def test_import_needs_torch_numpy_and_scipy_alone() -> None:
    script = (
        "import sys, fedfw; top = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(top & {'sklearn', 'matplotlib', 'flwr', 'dp_accounting', 'hypothesis', 'pandas'}))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
