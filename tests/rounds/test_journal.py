"""A journal gives back what was appended: all of it, or all but an entry that was never completed; damage is said."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from fedfw.rounds.checkpoints import DamagedCheckpointError
from fedfw.rounds.folders import Journal, RunFolder
from fedfw.rounds.records import History, Record


def rounds_of(path: Path) -> list[int]:
    return [meta["round"] for _, meta in Journal(path).entries()]


def fill(path: Path, count: int) -> list[int]:
    """Entries 1, 2, ...; returns where each of them ends."""
    journal, ends = Journal(path), [0]
    for t in range(1, count + 1):
        journal.append({"x": torch.full((3,), float(t))}, {"round": t})
        ends.append(journal.size)
    return ends


def test_entries_come_back_to_the_bit_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert list(Journal(path).entries()) == []
    x = torch.tensor([1e-320, -0.0, float("nan")], dtype=torch.float64)
    first = Journal(path)
    first.append({"x": x}, {"round": 1})
    first.append({}, {"round": 2})
    (tensors, _), (nothing, _) = Journal(path).entries()
    assert tensors["x"].numpy().tobytes() == x.numpy().tobytes()
    assert nothing == {}
    assert first.size == path.stat().st_size


def test_an_entry_that_was_cut_off_at_any_byte_is_dropped_and_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ends = fill(path, 3)
    data = path.read_bytes()
    for cut in range(ends[2], ends[3]):
        path.write_bytes(data[:cut])
        journal = Journal(path)
        assert [meta["round"] for _, meta in journal.entries()] == [1, 2]
        assert (journal.count, journal.size) == (2, ends[2])
    journal.append({"x": torch.full((3,), 3.0)}, {"round": 3})
    assert rounds_of(path) == [1, 2, 3]


@pytest.mark.parametrize("entry", [1, 2, 3])
def test_an_entry_that_was_changed_is_damage(entry: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ends = fill(path, 3)
    data = bytearray(path.read_bytes())
    for place in range(ends[entry - 1] + 8, ends[entry], 5):
        changed = bytearray(data)
        changed[place] ^= 4
        path.write_bytes(changed)
        entries = Journal(path).entries()
        assert [next(entries)[1]["round"] for _ in range(1, entry)] == list(range(1, entry))
        with pytest.raises(DamagedCheckpointError, match="damaged"):
            next(entries)


def history_of(t: int) -> History:
    """The loss of a round becomes known one round later."""
    return History([Record(round=k, loss=None if k == t else k / 3) for k in range(1, t + 1)])


def test_a_folder_goes_on_from_checkpoints_and_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever checkpoint is damaged, the journals of the one before it lead over it."""
    monkeypatch.setattr("fedfw.rounds.folders._MOST_ENTRIES", 3)
    folder, saved = RunFolder(tmp_path), []
    for t in range(1, 12):
        history = history_of(t)
        if not folder.append({}, {"round": t}, history, nbytes=10**9):
            folder.save(t, {}, {"round": t}, history)
            saved.append(t)
        assert (tmp_path / "history.jsonl").read_text() == history.to_jsonl()
    assert saved == [1, 4, 7, 10]
    kept = sorted(path.name for path in tmp_path.glob("*-*"))
    assert kept == [
        "checkpoint-00000007.safetensors",
        "checkpoint-00000010.safetensors",
        "journal-00000007",
        "journal-00000010",
    ]
    for damaged, first in ((False, 10), (True, 7)):
        if damaged:
            (tmp_path / "checkpoint-00000010.safetensors").write_bytes(b"")
        again = RunFolder(tmp_path, resume=True)
        with pytest.warns(UserWarning, match="going back") if damaged else nullcontext():
            found = again.latest()
        assert found is not None
        assert found[1]["round"] == first
        assert [meta["round"] for _, meta in again.entries(first)] == list(range(first + 1, 12))
    assert again.append({}, {"round": 12}, history_of(12), nbytes=10**9)
    assert rounds_of(tmp_path / "journal-00000010") == [11, 12]
    assert (tmp_path / "history.jsonl").read_text() == history_of(12).to_jsonl()


def test_a_journal_that_outgrows_the_checkpoint_ends_with_one(tmp_path: Path) -> None:
    folder, tensors = RunFolder(tmp_path), {"x": torch.ones(2**17)}  # half a megabyte
    folder.save(1, {}, {"round": 1}, history_of(1))
    due = [t for t in range(2, 9) if not folder.append(tensors, {"round": t}, history_of(t), nbytes=3 * 2**20)]
    assert due == [7, 8]


def test_a_damaged_journal_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save(1, {}, {"round": 1}, history_of(1))
    for t in (2, 3, 4):
        assert folder.append({}, {"round": t}, history_of(t), nbytes=0)
    path = tmp_path / "journal-00000001"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = RunFolder(tmp_path, resume=True)
    with pytest.raises(DamagedCheckpointError):
        list(again.entries(1))
    assert not again.append({}, {"round": 4}, history_of(4), nbytes=0)  # a checkpoint is due
    again.save(4, {}, {"round": 4}, history_of(4))
    assert again.append({}, {"round": 5}, history_of(5), nbytes=0)
