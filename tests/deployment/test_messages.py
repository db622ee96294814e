"""Messages survive the wire, and nothing else gets through."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfw.deployment.messages import Answer, Order
from fedfw.errors import MessageError

from .loopback import damaged

NAMES = st.text("abcxyz", min_size=1, max_size=5)
ORDERS = st.builds(
    Order,
    run=NAMES,
    t=st.integers(1, 2**40),
    client=st.integers(0, 2**40),
    n=st.integers(1, 2**40),
    weight=st.floats(1e-9, 1.0),
    counted=st.integers(0, 2**40),
    version=st.integers(0, 2**40),
    base=st.integers(0, 2**40),
    digest=st.binary(min_size=8, max_size=8),
    mean=st.binary(max_size=50),
    penalty=st.none() | st.floats(0, 1),
    vectors=st.dictionaries(NAMES, st.binary(max_size=20), max_size=3),
    memory=st.dictionaries(NAMES, st.binary(max_size=20), max_size=3),
    tell=st.booleans(),
)
ANSWERS = st.builds(
    Answer,
    run=NAMES,
    t=st.integers(1, 2**40),
    client=st.integers(0, 2**40),
    kind=NAMES,
    payload=st.binary(max_size=50),
    digest=st.binary(min_size=8, max_size=8),
    loss=st.none() | st.floats(allow_nan=False, allow_infinity=False),
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
        ({"schema": 1}, "schema 1, expected 3"),
        ({"t": "3"}, "t='3': Input should be a valid integer"),
        ({"t": True}, "valid integer"),
        ({"payload": [1, 2]}, "valid bytes"),
        ({"loss": math.inf}, "finite number"),
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
