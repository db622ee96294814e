"""The command line prints what the library measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fedfw
from fedfw.cli.main import main
from tests.processes import NETWORKS, run_python


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


@pytest.mark.parametrize("verb", ["hub", "proxy"])
def test_what_stands_before_a_superlink_does_without_torch(verb: str) -> None:
    pytest.importorskip("flwr")
    script = (
        f"import sys, fedfw.cli, fedfw.deployment.flower.{verb}\n"
        "try:\n"
        f"    fedfw.cli.main(['deploy', '{verb}', '--help'])\n"
        "except SystemExit as end:\n"
        "    print(end.code, 'torch' in sys.modules)\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "--listen" in out
    assert out.splitlines()[-1] == "0 False"


def test_a_notice_is_one_line_without_source_files(tmp_path: Path) -> None:
    """In a process of its own, because pytest takes warnings to itself."""
    flags = ["--model", "mlp", "--constraint", "l2:0.1", "--rounds", "1", "--out", tmp_path / "r"]
    done = run_python(["-m", "fedfw", "run", *flags], loaded=NETWORKS)
    noted = [line for line in done.stderr.splitlines() if "begins at the nearest point of the set" in line]
    assert len(noted) == 1
    assert noted[0].startswith("fedfw run: note: the model's parameters lie outside of the constraint set")
    assert ".py" not in done.stderr


def test_an_interrupt_while_torch_is_imported_ends_in_one_line() -> None:
    script = (
        "import os, signal\n"
        "from fedfw.cli.main import _quick_end\n"
        "with _quick_end('run'):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('it went on')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nfedfw run: interrupted\n")


def test_any_command_that_is_interrupted_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedfw.cli.sets.execute", interrupted)
    assert main(["sets"]) == 130
    assert capsys.readouterr().err == "\nfedfw sets: interrupted\n"
