"""Bytes that are no message, or another one than is expected, end in a named error."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfw.secure_sums import (
    Client,
    ClientState,
    Journal,
    MalformedMessageError,
    SecureSumError,
    Server,
    ServerState,
)
from fedfw.secure_sums import messages as kinds
from fedfw.secure_sums.journal import Entry
from fedfw.secure_sums.terms import Terms
from fedfw.secure_sums.wire import Message, Reader, kind_of, tagged, write_rows
from tests.secure_sums.federation import Federation, random_numbers

ALL = [
    Terms,
    *(kind for kind in vars(kinds).values() if hasattr(kind, "kind") and kind is not Message),
]


@cache
def recorded() -> tuple[Federation, list[tuple[bytes, bytes, bytes, bytes, bytes, Entry]]]:
    """Return every message to client 0 and its answer, with both states before them."""
    federation = Federation(3, span=3)
    numbers = random_numbers(federation)
    found = []
    for phase in range(7):
        if phase == 4:
            federation.server.start_round(0)
        message = federation.server.message_for(0)
        assert message is not None
        client = federation.clients[0].state.to_bytes()
        server = federation.server.state.to_bytes()
        entry = federation.journals[0].entry
        answer = federation.clients[0].answer(message, numbers[0])
        found.append((message, answer, client, server, b"", entry))
        federation.phase(numbers)
    return federation, found


def changed(data: bytes, how: tuple[str, int, int]) -> bytes:
    """Return mutated bytes."""
    kind, place, value = how
    at = place % (len(data) + 1)
    if kind == "cut":
        return data[:at]
    if kind == "add":
        return data[:at] + bytes([value]) + data[at:]
    if kind == "drop":
        return data[:at] + data[at + 1 :]
    at = place % len(data)
    return data[:at] + bytes([data[at] ^ (value or 1)]) + data[at + 1 :]


MUTATIONS = st.tuples(
    st.sampled_from(["cut", "add", "drop", "flip"]), st.integers(0, 1 << 20), st.integers(0, 255)
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 6), MUTATIONS)
def test_a_mutated_message_to_a_client_never_escapes_a_named_error(
    phase: int, how: tuple[str, int, int]
) -> None:
    federation, found = recorded()
    message, _, state, _, _, entry = found[phase]
    journal = Journal(entry)
    client = Client(federation.keys[0], federation.consent, journal, ClientState.from_bytes(state))
    mutated = changed(message, how)
    if mutated == message:
        return
    try:
        client.answer(mutated, np.zeros(6, np.int64))
    except SecureSumError:
        if journal.entry == entry:
            assert client.state.to_bytes() == state


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 6), MUTATIONS)
def test_a_mutated_answer_never_escapes_a_named_error_and_changes_nothing(
    phase: int, how: tuple[str, int, int]
) -> None:
    federation, found = recorded()
    _, answer, _, state, _, _ = found[phase]
    server = Server(federation.terms, ServerState.from_bytes(state))
    mutated = changed(answer, how)
    if mutated == answer:
        return
    try:
        server.receive(0, mutated)
    except SecureSumError:
        assert server.state.to_bytes() == state


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(ALL), st.binary(max_size=200), st.booleans())
def test_random_bytes_are_no_message(kind: Any, data: bytes, framed: bool) -> None:
    with_frame = b"FSUM" + bytes([1, kind.kind]) + data if framed else data
    try:
        message = kind.from_bytes(with_frame)
    except MalformedMessageError:
        return
    assert message.to_bytes() == with_frame


def test_messages_round_trip() -> None:
    _, found = recorded()
    for message, answer, *_ in found:
        for data in (message, answer):
            [kind] = [kind for kind in ALL if kind.kind == kind_of(data)]
            assert kind.from_bytes(data).to_bytes() == data


def test_huge_lengths_allocate_nothing() -> None:
    huge = (1 << 63).to_bytes(8, "big")
    for read, data in (
        (Reader.blob, huge),
        (Reader.bits, huge),
        (Reader.rows, huge + huge),
        (Reader.rows, huge + bytes(8)),
        (Reader.rows, bytes(8) + huge),
    ):
        with pytest.raises(MalformedMessageError):
            read(Reader(data))
    with pytest.raises(ValueError, match="differ in length"):
        write_rows([b"a", b"bc"])


def test_statements_of_other_parts_differ() -> None:
    parts: list[tuple[Any, ...]] = [
        (),
        (b"",),
        (0,),
        (b"", b""),
        (bytes(8),),
        (b"ab",),
        (b"a", b"b"),
    ]
    assert len({tagged(purpose, *some) for purpose in ("x", "xi") for some in parts}) == 14


def test_terms_travel_as_they_are() -> None:
    terms = Federation(3).terms
    assert Terms.from_bytes(terms.to_bytes()) == terms
    assert replace(terms, least=2).digest != terms.digest


def test_damaged_states_are_refused() -> None:
    for data in (b"", b"{", b"[]", b'{"no": 1}', b'{"terms": "zz"}', b'{"secrets": ["m", 3]}'):
        with pytest.raises(MalformedMessageError):
            ClientState.from_bytes(data)
