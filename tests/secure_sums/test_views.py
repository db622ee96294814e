"""The server's view, enumerated: two assignments of inputs with the same sum give the same
distribution of views.

The state machines are those of the protocol; `toy` has the primitives. Random digits that are not
enumerated are fixed, at two values each: they do not depend on the inputs, and views that agree for
each of their values agree altogether.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedfw.secure_sums import Client, ClientState, Server
from fedfw.secure_sums.messages import Reveal, Upload
from tests.secure_sums.federation import Federation
from tests.secure_sums.toy import Digits, ToyPrimitives, Worlds


class ToyFederation(Federation):
    """A federation whose entries are worlds."""

    def __init__(self, worlds: Worlds, **options: Any) -> None:
        self.worlds = worlds
        changes = {"modulus": 5, "entries": worlds.count}
        super().__init__(worlds.n, primitives=ToyPrimitives(worlds), changes=changes, **options)

    def client(self, i: int, state: ClientState | None = None) -> Client:
        own = ToyPrimitives(self.worlds, i)
        return Client(self.keys[i], self.consent, self.journals[i], state, own)


def columns_of_view(
    worlds: Worlds, inputs: Sequence[int], dropped: int | None, colluder: int | None
) -> list[Digits]:
    """Run the protocol in all worlds, and return all that the server and the colluder see."""
    options = {"dropouts": int(dropped is not None), "colluders": int(colluder is not None)}
    federation = ToyFederation(worlds, **options)
    federation.set_up()
    numbers = [np.full(worlds.count, value) for value in inputs]
    server: Server = federation.server
    server.start_round(0)
    seen: list[Digits] = []
    for i, client in enumerate(federation.clients):
        message = server.message_for(i)
        assert message is not None
        answer = client.answer(message, numbers[i])
        seen.append(server.terms.ring.unpack(Upload.from_bytes(answer).numbers, worlds.count))
        if i != dropped:  # its upload comes late: the server has seen it
            server.receive(i, answer)
    server.advance()
    absent = set() if dropped is None else {dropped}
    federation.phase(absent=absent)
    for i, client in enumerate(federation.clients):
        message = server.message_for(i)
        if message is None:
            continue
        answer = client.answer(message)
        server.receive(i, answer)
        for share in Reveal.from_bytes(answer).shares:
            seen += _rows(share, worlds)
    if colluder is not None:
        current = federation.clients[colluder].state.current
        assert current is not None
        for both in current.shares.values():
            seen += _rows(both, worlds)
        seen.append(worlds.digit("self", colluder))
        seen += _rows(worlds.row(colluder), worlds)
    found = server.finish()
    total = sum(value for i, value in enumerate(inputs) if i != dropped)
    assert (found.total == total).all()
    return seen


def _rows(data: bytes, worlds: Worlds) -> list[Digits]:
    return list(np.frombuffer(data, np.uint8).reshape(-1, worlds.count))


def same_distribution(one: list[Digits], other: list[Digits]) -> bool:
    """Return whether every view occurs in equally many worlds of both runs."""
    worlds = len(one[0])
    keys = np.zeros(2 * worlds, np.int64)
    for first, second in zip(one, other, strict=True):
        values = np.concatenate([first, second]).astype(np.int64)
        if (values == values[0]).all():
            continue
        keys = keys * 5 + values
        if int(keys.max()) > 1 << 59:
            keys = np.unique(keys, return_inverse=True)[1]
    keys = np.unique(keys, return_inverse=True)[1]
    different = int(keys.max()) + 1
    counts = [np.bincount(half, minlength=different) for half in (keys[:worlds], keys[worlds:])]
    return bool((counts[0] == counts[1]).all())


PAIRS = [("pair", 0, 1), ("pair", 0, 2), ("pair", 1, 2)]
SELVES = [("self", 0), ("self", 1), ("self", 2)]


@pytest.mark.parametrize(("inputs", "fixed"), [((0, 1, 0), 0), ((0, 0, 1), 3)])
def test_three_clients_that_stay(inputs: tuple[int, ...], fixed: int) -> None:
    enumerated = [*PAIRS, *SELVES, ("seed", 0, 1, 0)]
    one = columns_of_view(Worlds(3, enumerated, fixed), (1, 0, 0), None, None)
    other = columns_of_view(Worlds(3, enumerated, fixed), inputs, None, None)
    assert same_distribution(one, other)


@pytest.mark.parametrize(
    ("inputs", "fixed"), [((0, 1, 1), 0), ((0, 1, 0), 3), ((1, 0, 1), 0), ((0, 1, 1), 3)]
)
def test_three_clients_of_which_one_drops_out(inputs: tuple[int, ...], fixed: int) -> None:
    """Its upload comes after the list of survivors, so the server has it and all pairwise masks."""
    enumerated = [*PAIRS, *SELVES, ("row", 2, 1, 0)]
    one = columns_of_view(Worlds(3, enumerated, fixed), (1, 0, 0), 2, None)
    other = columns_of_view(Worlds(3, enumerated, fixed), inputs, 2, None)
    assert same_distribution(one, other)


@pytest.mark.parametrize("fixed", [0, 3])
def test_three_clients_of_which_one_colludes(fixed: int) -> None:
    """The colluding client gives its keys and the shares that it holds to the server."""
    rows = [("row", 0, 1, 1), ("row", 1, 1, 0)]
    seeds = [("seed", 0, 1, 0), ("seed", 1, 1, 0)]
    enumerated = [("pair", 0, 1), *SELVES[:2], *rows, *seeds]
    one = columns_of_view(Worlds(3, enumerated, fixed), (1, 0, 1), None, 2)
    other = columns_of_view(Worlds(3, enumerated, fixed), (0, 1, 1), None, 2)
    assert same_distribution(one, other)


@pytest.mark.parametrize(("inputs", "fixed"), [((0, 1, 0, 1), 0), ((0, 1, 1, 1), 3)])
def test_four_clients_of_which_one_drops_out_and_one_colludes(
    inputs: tuple[int, ...], fixed: int
) -> None:
    """The colluding client holds a share of the dropped client's self-mask seed, which is not
    revealed, and of the survivors' key seeds.
    """
    shares = [("row", 0, 1, 1), ("row", 1, 1, 0), ("seed", 2, 1, 0)]
    enumerated = [*PAIRS, ("self", 2), *shares]
    one = columns_of_view(Worlds(4, enumerated, fixed), (1, 0, 0, 1), 2, 3)
    other = columns_of_view(Worlds(4, enumerated, fixed), inputs, 2, 3)
    assert same_distribution(one, other)


def test_the_comparison_sees_what_is_not_hidden() -> None:
    """Other sums, and a server that has both secrets of a client, do show in the views."""
    enumerated = [*PAIRS, *SELVES]
    worlds = Worlds(3, enumerated)
    one = columns_of_view(worlds, (1, 0, 0), None, None)
    assert not same_distribution(one, columns_of_view(worlds, (1, 1, 0), None, None))
    one, other = (columns_of_view(worlds, (1, 0, last), 2, None) for last in (0, 1))
    assert same_distribution(one, other)
    secret = worlds.digit("self", 2)
    assert not same_distribution([*one, secret], [*other, secret])
