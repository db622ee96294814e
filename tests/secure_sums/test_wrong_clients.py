"""Clients that send what they should not."""

from dataclasses import replace

import numpy as np
import pytest

from fedfw.secure_sums import (
    MalformedMessageError,
    MissingKeysError,
    PhaseError,
    RangeError,
    RealPrimitives,
    ShareError,
    SignatureError,
)
from fedfw.secure_sums.messages import (
    Deal,
    Reveal,
    Upload,
)
from tests.secure_sums.federation import Federation, at_round, random_numbers


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


def test_shares_that_cannot_be_decrypted_are_missing_and_no_more() -> None:
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
