"""The examples run and end where their text says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("first_run.py", "at most 20"),
        ("own_model_and_set.py", "accuracy 0.9"),
        ("own_algorithm.py", "fedfw+     ends at  1.000"),
    ],
)
def test_example(name: str, expected: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, check=True)
    assert expected in done.stdout


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "first_run.py",
        "own_model_and_set.py",
        "own_algorithm.py",
    }
