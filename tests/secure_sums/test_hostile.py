"""Servers and clients that do not keep to the protocol, one case after another."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfw.secure_sums import (
    Client,
    ClientState,
    ConsentError,
    FileJournal,
    Journal,
    JournalError,
    ListError,
    MalformedMessageError,
    MissingKeysError,
    PhaseError,
    RangeError,
    RealPrimitives,
    RollbackError,
    RoundUsedError,
    SecondListError,
    Server,
    ShareError,
    SignatureError,
    TooFewSignaturesError,
    fingerprint,
)
from fedfw.secure_sums.messages import (
    Agreement,
    Certificate,
    Commitments,
    Deal,
    Keyring,
    Openings,
    Order,
    Reveal,
    Survivors,
    Upload,
)
from fedfw.secure_sums.recovery import remove_masks
from tests.secure_sums.federation import Federation, random_numbers


def at_round(n: int = 5, **options: Any) -> tuple[Federation, list[Any]]:
    """Return a federation whose clients have uploaded in round 0, and their numbers."""
    federation = Federation(n, **options)
    federation.set_up()
    numbers = random_numbers(federation)
    federation.server.start_round(0)
    federation.phase(numbers)
    return federation, numbers


def bits(n: int, clients: Iterable[int]) -> tuple[bool, ...]:
    return tuple(i in set(clients) for i in range(n))


def survivors(n: int, *clients: int, number: int = 0) -> bytes:
    return Survivors(number, bits(n, clients)).to_bytes()


# --- a server that shows different lists ---


def attacked(federation: Federation, victim: int) -> Any:
    """Show each client a list of four with the victim and itself; return the numbers of the victim
    if the revealed shares open them.
    """
    n = len(federation.clients)
    server = federation.server
    others = [i for i in range(n) if i != victim]
    lists = {i: {victim, i, others[(k + 1) % 9], others[(k + 2) % 9]} for k, i in enumerate(others)}
    lists[victim] = {victim, others[0], others[3], others[6]}
    assert len({frozenset(clients) for clients in lists.values()}) == n
    reveals: dict[int, dict[int, bytes]] = {}
    for i, client in enumerate(federation.clients):
        signature = Agreement.from_bytes(client.answer(survivors(n, *lists[i]))).signature
        uploads = [server.state.uploads[j] for j in sorted(lists[i])]
        honest = Certificate.from_bytes(certificate_for(federation, i, lists[i]))
        message = replace(honest, signers=bits(n, {i}), signatures=(signature,))
        assert len(uploads) == len(message.proofs)
        found = Reveal.from_bytes(client.answer(message.to_bytes()))
        # Shares of the victim's self-mask seed; for other dealers only those of their key seeds.
        reveals[i] = {
            j: share for j, share in enumerate(found.shares) if j == victim or j not in lists[i]
        }
    plan = server._batch().plan(0)
    total = server.terms.ring.unpack(server.state.uploads[victim][0], server.terms.entries)
    remove_masks(
        total,
        server._batch(),
        plan,
        server.state.dealers,
        bits(n, {victim}),
        server.state.records[0],
        reveals,
        federation.primitives,
    )
    return total


def certificate_for(federation: Federation, client: int, clients: Iterable[int]) -> bytes:
    """Return the certificate that the server would send for a list."""
    server = federation.server
    kept = server.state
    n = len(federation.clients)
    server.state = replace(kept, survivors=bits(n, clients), signatures=dict(kept.signatures))
    server.state.signatures[client] = bytes(64)
    message = server._certificate(client, server._batch().plan(0))
    server.state = kept
    return message


def test_different_lists_of_four_open_nothing() -> None:
    federation, _ = at_round(10, dropouts=6)
    assert (federation.terms.threshold, federation.terms.least) == (6, 4)
    with pytest.raises(
        TooFewSignaturesError, match="1 signatures of the list, expected at least 6"
    ):
        attacked(federation, victim=4)


def test_without_signatures_different_lists_open_the_victim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attack is real: with the check taken out it recovers every number of the victim."""
    federation, numbers = at_round(10, dropouts=6)
    monkeypatch.setattr(Client, "_check_signatures", lambda *given: None)
    assert attacked(federation, victim=4).tolist() == numbers[4].tolist()


def test_a_client_signs_one_list_a_round_also_after_a_restart() -> None:
    federation, _ = at_round(dropouts=2)
    client = federation.clients[1]
    before = client.state.to_bytes()
    first = client.answer(survivors(5, 0, 1, 2, 3))
    assert client.answer(survivors(5, 0, 1, 2, 3)) == first
    restored = federation.client(1, ClientState.from_bytes(before))
    for process in (client, restored):
        with pytest.raises(SecondListError):
            process.answer(survivors(5, 0, 1, 2))
    assert restored.answer(survivors(5, 0, 1, 2, 3)) == first


def test_lists_that_are_short_or_strange_are_refused() -> None:
    federation, _ = at_round(dropouts=2)
    client = federation.clients[0]
    with pytest.raises(ListError, match="not on the list"):
        client.answer(survivors(5, 1, 2, 3, 4))
    with pytest.raises(ListError, match="a list of 2 clients"):
        client.answer(survivors(5, 0, 1))
    with pytest.raises(MalformedMessageError):
        client.answer(survivors(7, 0, 1, 2, 3))
    with pytest.raises(PhaseError):
        client.answer(survivors(5, 0, 1, 2, 3, number=1))
    federation = Federation(5, dropouts=2)
    federation.set_up(absent={4})
    federation.server.start_round(0)
    federation.phase(random_numbers(federation))
    with pytest.raises(ListError, match="dealt no shares"):
        federation.clients[0].answer(survivors(5, 0, 1, 2, 4))


def test_shares_need_signatures_of_this_very_list() -> None:
    federation, _ = at_round(dropouts=2)
    federation.phase()
    message = federation.server.message_for(0)
    assert message is not None
    good = Certificate.from_bytes(message)
    few = replace(good, signers=bits(5, {0, 1}), signatures=good.signatures[:2])
    with pytest.raises(TooFewSignaturesError):
        federation.clients[0].answer(few.to_bytes())
    forged = replace(good, signatures=(*good.signatures[:4], bytes(64)))
    with pytest.raises(SignatureError):
        federation.clients[0].answer(forged.to_bytes())
    twice = replace(good, signatures=(good.signatures[0],) * 5)
    with pytest.raises(SignatureError):
        federation.clients[0].answer(twice.to_bytes())
    proofs = replace(good, proofs=good.proofs[::-1])
    with pytest.raises(SignatureError):
        federation.clients[0].answer(proofs.to_bytes())
    Reveal.from_bytes(federation.clients[0].answer(message))


def test_nobody_helps_to_open_an_upload_that_was_masked_for_other_dealers() -> None:
    """A victim that is shown fewer dealers masks its numbers with fewer neighbours."""
    federation = Federation(5, dropouts=2)
    federation.set_up()
    numbers = random_numbers(federation)
    federation.server.start_round(0)
    order = Order.from_bytes(federation.server.message_for(0) or b"")
    fewer = replace(order, dealers=bits(5, {0, 1, 2}), sealed=order.sealed[:2])
    upload = Upload.from_bytes(federation.clients[0].answer(fewer.to_bytes(), numbers[0]))
    with pytest.raises(SignatureError):
        federation.server.receive(0, upload.to_bytes())
    for i in range(1, 5):
        message = federation.server.message_for(i) or b""
        federation.server.receive(i, federation.clients[i].answer(message, numbers[i]))
    federation.server.state.uploads[0] = upload.numbers, upload.signature
    federation.server.advance()
    for i in range(1, 5):
        message = federation.server.message_for(i) or b""
        federation.server.receive(i, federation.clients[i].answer(message))
    federation.server.advance()
    for i in range(1, 5):
        with pytest.raises(SignatureError):
            federation.clients[i].answer(federation.server.message_for(i) or b"")


# --- a server that replays, and clients whose disks are set back ---


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


# --- a server that invents or changes owners, keys and randomness ---


def test_strangers_and_small_sums_are_refused_by_consent() -> None:
    federation = Federation(5, dropouts=1)
    terms = federation.terms
    stranger = RealPrimitives().public_identity(b"s" * 32)
    invented = replace(terms, owners=tuple(sorted((*terms.owners[1:], stranger))))
    client = federation.clients[2]
    with pytest.raises(ConsentError, match=fingerprint(stranger)):
        client.answer(invented.to_bytes())
    with pytest.raises(ConsentError, match="sums of 3"):
        client.answer(replace(terms, least=3).to_bytes())
    without = replace(terms, owners=terms.owners[:2] + terms.owners[3:], invited=4, least=4)
    with pytest.raises(ConsentError, match="not in the list"):
        client.answer(replace(without, dropouts=0).to_bytes())
    careful = replace(federation.consent, colluders=1)
    with pytest.raises(ConsentError, match="safe against 0"):
        Client(federation.keys[2], careful, Journal()).answer(terms.to_bytes())
    for _ in range(16):
        client.answer(terms.to_bytes())
        client.answer(replace(terms, entries=7).to_bytes())
        if client._journal.entry.starts == 16:
            break
    with pytest.raises(ConsentError, match="16 batches"):
        client.answer(terms.to_bytes())


def test_changed_commitments_openings_and_keys_are_refused() -> None:
    federation = Federation(4)
    federation.phase()
    client = federation.clients[0]
    commitments = Commitments.from_bytes(federation.server.message_for(0) or b"")
    swapped = replace(commitments, digests=commitments.digests[::-1])
    with pytest.raises(SignatureError):
        client.answer(swapped.to_bytes())
    missing = replace(
        commitments,
        members=bits(4, {1, 2, 3}),
        digests=commitments.digests[1:],
        signatures=commitments.signatures[1:],
    )
    with pytest.raises(ListError, match="lack this client"):
        client.answer(missing.to_bytes())
    federation.phase()
    with pytest.raises(PhaseError):
        client.answer(swapped.to_bytes())
    openings = Openings.from_bytes(federation.server.message_for(0) or b"")
    chosen = replace(openings, values=(*openings.values[:3], bytes(32)))
    with pytest.raises(SignatureError, match="another value"):
        client.answer(chosen.to_bytes())
    federation.phase()
    keyring = Keyring.from_bytes(federation.server.message_for(0) or b"")
    forged = replace(keyring, records=(keyring.records[1], *keyring.records[1:]))
    with pytest.raises(SignatureError):
        client.answer(forged.to_bytes())
    client.answer(keyring.to_bytes())
    fewer = replace(keyring, present=(False, True, True), records=keyring.records[1:])
    with pytest.raises(PhaseError):
        client.answer(fewer.to_bytes())


def test_a_dealer_whose_keys_were_withheld_is_not_masked_against() -> None:
    federation = Federation(4)
    for _ in range(3):
        federation.phase()
    keyring = Keyring.from_bytes(federation.server.message_for(0) or b"")
    fewer = replace(keyring, present=(False, True, True), records=keyring.records[1:])
    federation.clients[0].answer(fewer.to_bytes())
    for i in range(1, 4):
        message = federation.server.message_for(i) or b""
        federation.server.receive(i, federation.clients[i].answer(message))
    federation.server.advance()
    sealed = federation.server.state.sealed[0]
    rows = tuple(sealed[i][0] for i in range(1, 4))
    order = Order(0, 0, (True,) * 4, rows).to_bytes()
    with pytest.raises(MissingKeysError):
        federation.clients[0].answer(order, np.zeros(6, np.int64))


# --- clients that send what they should not ---


def test_wrong_shares_of_one_client_do_not_stop_the_sum() -> None:
    federation, numbers = at_round(7, dropouts=2)
    federation.phase()
    for i, client in enumerate(federation.clients):
        reveal = Reveal.from_bytes(client.answer(federation.server.message_for(i) or b""))
        if i == 1:
            reveal = replace(reveal, shares=tuple(bytes(32) for _ in reveal.shares))
        federation.server.receive(i, reveal.to_bytes())
    federation.server.advance()
    assert (federation.server.finish().total == sum(numbers)).all()


def test_too_many_wrong_shares_are_a_named_error() -> None:
    federation, _ = at_round(5)
    federation.phase()
    for i, client in enumerate(federation.clients):
        reveal = Reveal.from_bytes(client.answer(federation.server.message_for(i) or b""))
        if i < 3:
            reveal = replace(reveal, shares=tuple(bytes(32) for _ in reveal.shares))
        federation.server.receive(i, reveal.to_bytes())
    federation.server.advance()
    with pytest.raises(ShareError, match="client 0"):
        federation.server.finish()


def test_shares_that_nobody_can_decrypt_are_missing_and_no_more() -> None:
    federation = Federation(6, dropouts=1)
    for _ in range(3):
        federation.phase()
    for i, client in enumerate(federation.clients):
        deal = Deal.from_bytes(client.answer(federation.server.message_for(i) or b""))
        if i == 2:
            deal = replace(deal, sealed=(bytes(92), *deal.sealed[1:]))
        federation.server.receive(i, deal.to_bytes())
    federation.server.advance()
    numbers = random_numbers(federation)
    found = federation.sum(numbers, at_upload={2})
    assert (found.total == sum(numbers[i] for i in (0, 1, 3, 4, 5))).all()


def test_the_server_refuses_wrong_late_and_double_messages() -> None:
    federation = Federation(4, dropouts=1, rounds=2)
    federation.set_up()
    numbers = random_numbers(federation)
    federation.server.start_round(0)
    uploads = [
        federation.clients[i].answer(federation.server.message_for(i) or b"", numbers[i])
        for i in range(4)
    ]
    good = Upload.from_bytes(uploads[0])
    receive = federation.server.receive
    for wrong, error in (
        (replace(good, numbers=good.numbers + b"x"), MalformedMessageError),
        (replace(good, numbers=bytes(len(good.numbers))), SignatureError),
        (replace(good, round=1), PhaseError),
        (replace(good, sender=1), PhaseError),
    ):
        with pytest.raises(error):
            receive(0, wrong.to_bytes())
    with pytest.raises(PhaseError, match="in the name of"):
        receive(1, uploads[0])
    for i in range(3):
        receive(i, uploads[i])
    with pytest.raises(PhaseError, match="twice"):
        receive(0, uploads[0])
    federation.server.advance()
    with pytest.raises(MalformedMessageError):
        receive(3, uploads[3])
    federation.phase(absent={3})
    federation.phase(absent={3})
    found = federation.server.finish()
    assert found.clients == (0, 1, 2)
    assert (found.total == sum(numbers[:3])).all()
    with pytest.raises(PhaseError):
        receive(3, uploads[3])


def test_keys_that_would_shut_out_neighbours_are_refused_by_the_server() -> None:
    class SmallOrder(RealPrimitives):
        def public_key(self, secret: bytes) -> bytes:
            return bytes(32)

    federation = Federation(4, dropouts=1)
    federation.clients[3]._primitives = SmallOrder()
    for _ in range(2):
        federation.phase()
    with pytest.raises(MissingKeysError):
        federation.phase()
    federation.server.advance()  # the others' keys are kept
    federation.phase(absent={3})
    numbers = random_numbers(federation)
    found = federation.sum(numbers)
    assert found.clients == (0, 1, 2)
    assert (found.total == sum(numbers[:3])).all()


def test_numbers_beyond_the_range_are_refused_before_any_mask_is_used() -> None:
    federation = Federation(3, span=2)
    federation.set_up()
    federation.server.start_round(0)
    order = federation.server.message_for(0) or b""
    for numbers in (
        np.full(6, federation.terms.span + 1),
        np.full(6, -1),
        np.zeros(5, np.int64),
        np.zeros(6),
        None,
    ):
        with pytest.raises(RangeError):
            federation.clients[0].answer(order, numbers)
    federation.clients[0].answer(order, np.zeros(6, np.int64))
