"""A server that invents or changes owners, keys and randomness."""

from dataclasses import replace

import numpy as np
import pytest

from fedfw.secure_sums import (
    Client,
    ConsentError,
    Journal,
    ListError,
    MissingKeysError,
    PhaseError,
    RealPrimitives,
    SignatureError,
    fingerprint,
)
from fedfw.secure_sums.messages import (
    Commitments,
    Keyring,
    Openings,
    Order,
)
from tests.secure_sums.federation import Federation, bits


def test_strangers_and_small_sums_are_refused_by_consent() -> None:
    federation = Federation(5, dropouts=1)
    terms = federation.terms
    stranger = RealPrimitives().public_identity(b"s" * 32)
    invented = replace(terms, owners=tuple(sorted((*terms.owners[1:], stranger))))
    client = federation.clients[2]
    with pytest.raises(ConsentError, match=fingerprint(stranger)):
        client.answer(invented.to_bytes())
    with pytest.raises(ConsentError, match="2000 rounds"):
        client.answer(replace(terms, rounds=2000).to_bytes())
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
