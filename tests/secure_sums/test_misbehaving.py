"""Clients that answer wrongly, late, twice or not at all: the correct sum, or a named error."""

from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fedfw.secure_sums import Client, ClientState, Journal, SecureSumError, Server, ServerState
from fedfw.secure_sums.journal import Entry
from fedfw.secure_sums.messages import Reveal
from tests.secure_sums.federation import Federation, random_numbers

N = 6


@cache
def begun() -> tuple[Federation, list[tuple[bytes, Entry]], bytes]:
    """Return a federation after the set-up, and its states as bytes."""
    federation = Federation(N, dropouts=2, entries=5)
    federation.set_up()
    kept = [
        (client.state.to_bytes(), journal.entry)
        for client, journal in zip(federation.clients, federation.journals, strict=True)
    ]
    return federation, kept, federation.server.state.to_bytes()


def misbehaved(answer: bytes, how: str, place: int, earlier: list[bytes]) -> list[bytes]:
    """Return what a client sends instead of an answer."""
    if how == "nothing":
        return []
    if how == "twice":
        return [answer, answer]
    if how == "shorter":
        return [answer[:-1]]
    if how == "longer":
        return [answer + bytes(place)]
    if how == "other bit":
        at = place % len(answer)
        return [answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :]]
    if how == "late":
        return earlier
    if how == "wrong shares" and answer[5] == Reveal.kind:
        found = Reveal.from_bytes(answer)
        wrong = tuple(bytes([place % 256]) * 32 for _ in found.shares)
        return [Reveal(found.sender, found.round, found.held, wrong).to_bytes()]
    return [answer]


HOW = st.sampled_from(
    ["honest"] * 5 + ["nothing", "twice", "shorter", "longer", "other bit", "late", "wrong shares"]
)
BEHAVIOUR = st.lists(st.tuples(HOW, st.integers(1, 5000)), min_size=N, max_size=N)


@settings(max_examples=80, deadline=None)
@given(st.tuples(BEHAVIOUR, BEHAVIOUR, BEHAVIOUR))
def test_a_correct_sum_or_a_named_error(behaviour: Any) -> None:
    federation, kept, state = begun()
    clients = [
        Client(
            federation.keys[i],
            federation.consent,
            Journal(entry),
            ClientState.from_bytes(data),
        )
        for i, (data, entry) in enumerate(kept)
    ]
    server = Server(federation.terms, ServerState.from_bytes(state))
    numbers = random_numbers(federation)
    earlier: list[list[bytes]] = [[] for _ in range(N)]
    server.start_round(0)
    try:
        for phase in range(3):
            for i, client in enumerate(clients):
                message = server.message_for(i)
                if message is None:
                    continue
                answer = client.answer(message, numbers[i])
                for data in misbehaved(answer, *behaviour[phase][i], earlier[i]):
                    try:
                        server.receive(i, data)
                    except SecureSumError:
                        continue
                earlier[i].append(answer)
            server.advance()
        found = server.finish()
    except SecureSumError:
        return
    assert len(found.clients) >= federation.terms.least
    assert (found.total == sum(numbers[i] for i in found.clients)).all()
