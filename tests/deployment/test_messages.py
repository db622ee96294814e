"""Messages survive the wire, and nothing else gets through."""

from __future__ import annotations

import contextlib
import math
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfw.deployment.messages import (
    MOST_BYTES,
    MOST_CLIENTS,
    MOST_FIELDS,
    SCHEMA,
    Answer,
    Hello,
    Order,
    refuse_oversized,
)
from fedfw.errors import MessageError

from .loopback import damaged

NAMES = st.text("abcxyz", min_size=1, max_size=5)
ORDERS = st.builds(
    Order,
    run=NAMES,
    t=st.integers(1, 2**40),
    client=st.integers(0, MOST_CLIENTS - 1),
    n=st.integers(1, MOST_CLIENTS),
    weight=st.floats(1e-9, 1.0),
    counted=st.integers(0, 2**40),
    version=st.integers(1, 2**40),
    base=st.integers(0, 2**40),
    digest=st.binary(min_size=8, max_size=8),
    gathered=st.booleans(),
    penalty=st.none() | st.floats(0, 1),
    vectors=st.dictionaries(NAMES, st.binary(max_size=20), max_size=3),
    memory=st.dictionaries(NAMES, st.binary(max_size=20), max_size=3),
    tell=st.booleans(),
)
ANSWERS = st.builds(
    Answer,
    run=NAMES,
    t=st.integers(1, 2**40),
    client=st.integers(0, MOST_CLIENTS - 1),
    kind=NAMES,
    payload=st.binary(max_size=50),
    digest=st.binary(min_size=8, max_size=8),
    loss=st.none() | st.floats(-1e17, 1e17),
)


@given(st.one_of(ORDERS, ANSWERS))
def test_fields_and_back(message: Order | Answer) -> None:
    fields = message.fields()
    assert all(type(value) in (int, float, str, bytes, bool) for value in fields.values())
    assert type(message).of(fields) == message


@given(ANSWERS, st.integers(0, 2**32))
def test_damage_is_noticed_or_harmless(answer: Answer, seed: int) -> None:
    fields = damaged(answer.fields(), random.Random(seed))
    with contextlib.suppress(MessageError):
        assert Answer.of(fields) != answer


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": 1}, "schema 1, expected 4"),
        ({"t": "3"}, "t='3': Input should be a valid integer"),
        ({"t": True}, "valid integer"),
        ({"t": -1}, "greater than or equal to 0"),
        ({"payload": [1, 2]}, "type list, expected one number, text or bytes"),
        ({"payload": "12"}, "valid bytes"),
        ({"loss": 1e308}, "less than"),
        ({"loss": math.nan}, "finite number|greater"),
        ({"loss": math.inf}, "finite number|less"),
        ({"surprise": 1}, "unknown fields"),
        ({"kind": None}, "kind"),
    ],
)
def test_what_is_no_answer_is_refused(change: dict[str, Any], told: str) -> None:
    fields = Answer("run", 3, 0, "step").fields() | change
    with pytest.raises(MessageError, match=told):
        Answer.of(fields)
    missing = Answer("run", 3, 0, "step").fields()
    del missing["run"]
    with pytest.raises(MessageError, match="there is no run"):
        Answer.of(missing)


@pytest.mark.parametrize("n", [0, -1, MOST_CLIENTS + 1, 2**52])
def test_an_order_for_so_many_clients_is_refused(n: int) -> None:
    """Minibatches are drawn for all clients at once, so their number is memory."""
    fields = Order("run", 1, 0, n, 0.5, 0, 1, 0, b"").fields()
    with pytest.raises(MessageError, match=f"n={n}: Input should be (greater|less) than or equal to"):
        Order.of(fields)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=10,
)
KEYS = st.sampled_from(["schema", "run", "t", "client", "n", "weight", "counted", "version", "base", "digest", "kind"])
OTHER_KEYS = st.sampled_from(["vectors.x", "memory.", "payload", "loss", "number", "lr", "penalty", "leaving", "ask"])


@given(st.dictionaries(KEYS | OTHER_KEYS | st.text(max_size=9) | st.integers(), JUNK, max_size=20), st.booleans())
def test_whatever_comes_in_is_a_message_or_refused(junk: dict[Any, Any], ours: bool) -> None:
    """Nothing but `MessageError` is raised, and what gets through can be sent again."""
    fields = junk | {"schema": SCHEMA} if ours else junk
    for kind in (Order, Answer, Hello):
        with contextlib.suppress(MessageError):
            message = kind.of(fields)
            assert kind.of(message.fields()) == message


@given(ORDERS, KEYS | OTHER_KEYS, JUNK)
def test_an_order_with_one_strange_field_is_an_order_or_refused(order: Order, name: str, junk: Any) -> None:
    with contextlib.suppress(MessageError):
        found = Order.of(order.fields() | {name: junk})
        assert found.t >= 1
        assert 0 < found.weight <= 1
        assert all(math.isfinite(rate) and rate >= 0 for rate in (found.lr, found.penalty) if rate is not None)


@pytest.mark.parametrize("kind", [Order, Answer, Hello])
@pytest.mark.parametrize(
    "hostile",
    [
        {f"k{i}": 1 for i in range(10**5)},
        {f"vectors.k{i}": b"" for i in range(10**5)},
        {"k" * 10**6: 1},
        {"run": "k" * 10**6},
        {"t": [1.5] * 10**6},
        {"payload": [7] * 10**6},
        {"t": 10**5000},
        {"t": -(10**5000)},
        {"client": {"a": {"b": ["c"] * 10**6}}},
        {"kind": ("x",) * 10**6},
    ],
    ids=lambda hostile: next(iter(hostile))[:12],
)
def test_sizes_are_looked_at_first(kind: Any, hostile: dict[str, Any]) -> None:
    """A refusal takes next to no memory, and its text is short."""
    fields = {"schema": SCHEMA, "run": "run", "t": 3, "client": 0} | hostile
    tracemalloc.start()
    try:
        with pytest.raises(MessageError) as refused:
            kind.of(fields)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 300


def test_limits_are_what_the_refusal_says() -> None:
    refuse_oversized({f"k{i}": 1 for i in range(MOST_FIELDS)}, MOST_BYTES)
    with pytest.raises(MessageError, match="oversized: 65 fields, expected at most 64"):
        refuse_oversized({f"k{i}": 1 for i in range(MOST_FIELDS + 1)})
    with pytest.raises(MessageError, match="oversized: 11 bytes, expected at most 10"):
        refuse_oversized({"payload": b"1" * 11}, 10)
