"""A ledger holds every release that was made, or says that it does not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from fedfw.deployment.ledger import Ledger, LedgerError, Release, spent
from tests.processes import start_python

ONE = Release("run", 1, "a promise", 5.0, epsilon=0.5, delta=1e-6, share=0.25)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "owner" / "clinic.ledger.jsonl")
    made.create()
    return made


def fill(ledger: Ledger, count: int) -> None:
    for _ in range(count):
        ledger.record(lambda so_far: replace(ONE, release=len(so_far) + 1))


def test_what_is_recorded_is_read_again_and_nobody_else_can_read_it(ledger: Ledger) -> None:
    fill(ledger, 3)
    assert [replace(one, before="") for one in ledger.releases()] == [replace(ONE, release=i) for i in (1, 2, 3)]
    assert len({one.before for one in ledger.releases()}) == 3
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    assert ledger.path.parent.stat().st_mode & 0o777 == 0o700
    ledger.create()
    assert len(ledger.releases()) == 3


def test_a_run_without_any_noise_spends_without_limit(ledger: Ledger) -> None:
    ledger.record(lambda so_far: replace(ONE, noise=0.0, epsilon=math.inf))
    assert spent(ledger.releases()) == (math.inf, 1e-6)


def test_nothing_is_written_where_nothing_is_allowed(ledger: Ledger) -> None:
    fill(ledger, 1)
    before = ledger.path.read_bytes()
    assert ledger.record(lambda so_far: None) is None
    assert ledger.path.read_bytes() == before


def test_runs_add_up_and_within_a_run_the_last_line_tells() -> None:
    releases = [ONE, replace(ONE, release=2, epsilon=0.75), replace(ONE, run="other"), replace(ONE, epsilon=1.0)]
    assert spent(releases) == (1.5, 2e-6)
    assert spent([]) == (0.0, 0.0)


def _without(line: int, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[:line] + lines[line + 1 :])


DAMAGE = {
    "an epsilon is changed": lambda data: data.replace(b'"epsilon": 0.5', b'"epsilon": 0.1', 1),
    "the first line is gone": lambda data: _without(0, data),
    "a line in the middle is gone": lambda data: _without(1, data),
    "two lines are swapped": lambda data: b"".join(data.splitlines(keepends=True)[i] for i in (1, 0, 2)),
    "the last line is cut": lambda data: data[:-20],
    "the last line has no end": lambda data: data[:-1],
    "zeros are at its end": lambda data: data + b"\0" * 40,
    "an empty line is at its end": lambda data: data + b"\n",
    "a line is no release": lambda data: data + b"{}\n",
    "a field too much": lambda data: data.replace(b'"noise"', b'"more": 1, "noise"', 1),
    "something else": lambda data: b"not a ledger",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_ledger_is_neither_read_nor_continued(ledger: Ledger, damage: str) -> None:
    fill(ledger, 3)
    ledger.path.write_bytes(DAMAGE[damage](ledger.path.read_bytes()))
    left = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.releases()
    with pytest.raises(LedgerError, match="is damaged"):
        fill(ledger, 1)
    assert ledger.path.read_bytes() == left


def test_a_changed_last_line_is_noticed_when_it_says_less_than_nothing(ledger: Ledger) -> None:
    fill(ledger, 1)
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b'"epsilon": 0.5', b'"epsilon": -9.0'))
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.releases()


def test_a_lost_ledger_is_no_empty_one(ledger: Ledger) -> None:
    ledger.path.unlink()
    with pytest.raises(LedgerError, match="what was released from these data is unknown"):
        fill(ledger, 1)
    assert not ledger.path.exists()


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_an_older_copy_is_noticed_by_the_witness(ledger: Ledger, lines: int, tmp_path: Path) -> None:
    seeing, other = (replace(ledger, witness=tmp_path / name / "witness") for name in ("one", "two"))
    fill(seeing, 1)
    fill(other, 1)  # two clients of the same data have a witness each
    fill(seeing, 1)
    fill(other, 1)
    assert len(seeing.releases()) == 4
    ledger.path.write_bytes(b"".join(ledger.path.read_bytes().splitlines(keepends=True)[:lines]))
    with pytest.raises(LedgerError, match="is damaged: it is older than the last release"):
        fill(seeing, 1)
    assert len(ledger.releases()) == lines


def test_who_dies_before_the_witness_saw_the_line_goes_on(ledger: Ledger, tmp_path: Path) -> None:
    seeing = replace(ledger, witness=tmp_path / "witness")
    fill(seeing, 1)
    fill(ledger, 1)
    fill(seeing, 1)
    assert [one.release for one in seeing.releases()] == [1, 2, 3]


def test_two_processes_never_make_the_same_release(ledger: Ledger) -> None:
    code = f"from pathlib import Path; from {__name__} import *; fill(Ledger(Path({str(ledger.path)!r})), 20)"
    twins = [start_python(["-c", code]) for _ in range(2)]
    assert [twin.wait().returncode for twin in twins] == [0, 0]
    assert [one.release for one in ledger.releases()] == list(range(1, 41))


def test_a_run_whose_server_was_put_back_is_still_one_run() -> None:
    renamed = [replace(ONE, run=name, release=i, epsilon=0.5 * i) for i, name in enumerate(("r", "r.7", "r.7.12"), 1)]
    assert spent(renamed) == (1.5, 1e-6)
    assert spent([*renamed, replace(ONE, run="r2")]) == (2.0, 2e-6)
