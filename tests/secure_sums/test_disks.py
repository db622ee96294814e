"""A server that replays, and clients whose disks are set back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedfw.secure_sums import (
    ClientState,
    FileJournal,
    JournalError,
    PhaseError,
    RollbackError,
    RoundUsedError,
    Server,
)
from fedfw.secure_sums.messages import (
    Order,
)
from tests.secure_sums.federation import Federation, random_numbers


def test_no_mask_is_used_twice() -> None:
    federation = Federation(4, rounds=2)
    federation.set_up()
    numbers = random_numbers(federation)
    client = federation.clients[2]
    before = client.state.to_bytes()
    federation.server.start_round(0)
    order = federation.server.message_for(2) or b""
    upload = client.answer(order, numbers[2])
    assert client.answer(order, numbers[1]) == upload
    other = replace(Order.from_bytes(order), sealed=Order.from_bytes(order).sealed[::-1])
    restored = federation.client(2, ClientState.from_bytes(before))
    for process, message in ((client, other.to_bytes()), (restored, order)):
        with pytest.raises(RoundUsedError):
            process.answer(message, numbers[2])


def test_two_sums_of_one_round_are_refused_by_both_sides() -> None:
    federation = Federation(4, rounds=2)
    federation.set_up()
    numbers = random_numbers(federation)
    federation.sum(numbers, 0)
    with pytest.raises(PhaseError, match="has been summed"):
        federation.server.start_round(0)
    federation.server.state.counters = {}
    federation.server.start_round(0)
    for i in range(4):
        order = Order.from_bytes(federation.server.message_for(i) or b"")
        with pytest.raises(RoundUsedError):
            federation.clients[i].answer(replace(order, counter=1).to_bytes(), numbers[i])


def test_a_new_batch_does_not_give_a_used_round_back() -> None:
    federation = Federation(3)
    federation.set_up()
    numbers = random_numbers(federation)
    federation.sum(numbers)
    federation.server = Server(federation.terms)
    federation.set_up()
    federation.server.start_round(0)
    with pytest.raises(RoundUsedError):
        federation.clients[0].answer(federation.server.message_for(0) or b"", numbers[0])


def test_disks_that_were_set_back_are_noticed(tmp_path: Path) -> None:
    federation = Federation(3, rounds=2)
    path, witness = tmp_path / "journal", tmp_path / "witness"
    federation.journals[0] = FileJournal(path, b"run", witness)
    federation.clients[0] = federation.client(0)
    federation.set_up()
    early_state, early = federation.clients[0].state.to_bytes(), path.read_bytes()
    numbers = random_numbers(federation)
    federation.sum(numbers, 0)
    late_state = federation.clients[0].state.to_bytes()
    with pytest.raises(JournalError, match="in use"):
        FileJournal(path, b"run")
    federation.journals[0].close()  # type: ignore[attr-defined]
    with pytest.raises(JournalError, match="another run"):
        FileJournal(path, b"other")

    # The journal alone was set back: the witness shows it, and so does the state.
    path.write_bytes(early)
    with pytest.raises(RollbackError, match="witness"):
        FileJournal(path, b"run", witness)
    with FileJournal(path, b"run") as journal:
        federation.journals[0] = journal
        with pytest.raises(RollbackError, match="state was kept"):
            federation.client(0, ClientState.from_bytes(late_state))
        # All of the disk was set back: the server's counter shows it.
        client = federation.client(0, ClientState.from_bytes(early_state))
        federation.server.start_round(1)
        with pytest.raises(RollbackError, match="upload of round 0"):
            client.answer(federation.server.message_for(0) or b"", numbers[0])
    path.unlink()
    with pytest.raises(RollbackError):
        FileJournal(path, b"run", witness)
    path.write_bytes(early[:-1] + b"x")
    with pytest.raises(JournalError, match="damaged"):
        FileJournal(path, b"run")


def test_a_crash_between_journal_and_witness_is_mended(tmp_path: Path) -> None:
    path, witness = tmp_path / "journal", tmp_path / "witness"
    with FileJournal(path, b"run", witness) as journal:
        journal.use_round(0)
        behind = witness.read_bytes()
        journal.use_round(1)
    witness.write_bytes(behind)
    with FileJournal(path, b"run", witness) as journal:
        assert journal.entry.next_round == 2
        journal.use_round(2)
    assert witness.read_bytes() == path.read_bytes()


def test_a_full_disk_stops_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written down is not sent."""
    federation = Federation(3, rounds=2)
    federation.journals[0] = FileJournal(tmp_path / "journal", b"run")
    federation.clients[0] = federation.client(0)
    federation.set_up()
    federation.server.start_round(0)

    def full(*given: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("fedfw.secure_sums.journal._replace", full)
    before = federation.clients[0].state.to_bytes()
    with pytest.raises(OSError, match="no space"):
        federation.clients[0].answer(
            federation.server.message_for(0) or b"", random_numbers(federation)[0]
        )
    assert federation.clients[0].state.to_bytes() == before
