"""A server that shows different lists to different clients."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from fedfw.secure_sums import (
    Client,
    ClientState,
    ListError,
    MalformedMessageError,
    PhaseError,
    SecondListError,
    SignatureError,
    TooFewSignaturesError,
)
from fedfw.secure_sums.messages import (
    Agreement,
    Certificate,
    Order,
    Reveal,
    Upload,
)
from fedfw.secure_sums.recovery import remove_masks
from tests.secure_sums.federation import Federation, at_round, bits, random_numbers, survivors


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


def test_no_client_helps_to_open_an_upload_that_was_masked_for_other_dealers() -> None:
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
