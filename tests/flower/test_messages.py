"""Messages survive the wire, and nothing else gets through."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfw.errors import AtomError, MessageError
from fedfw.flower.messages import Answer, Order, decode_vector, encode_vector

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
    model=st.binary(max_size=50),
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
        ({"schema": 2}, "schema 2, expected 1"),
        ({"t": "3"}, "t='3', expected int"),
        ({"t": True}, "expected int"),
        ({"payload": [1, 2]}, "expected bytes"),
        ({"loss": math.inf}, "expected float"),
        ({"surprise": 1}, "unknown fields"),
        ({"kind": None}, "kind"),
    ],
)
def test_what_is_no_answer_is_refused(change: dict[str, Any], told: str) -> None:
    fields = Answer("run", 3, 0, "atom").fields() | change
    with pytest.raises(MessageError, match=told):
        Answer.of(fields)
    missing = Answer("run", 3, 0, "atom").fields()
    del missing["run"]
    with pytest.raises(MessageError, match="there is no run"):
        Answer.of(missing)


@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.5, -2.0]), min_size=1, max_size=40), st.booleans())
def test_vectors_come_back_whole(values: list[float], double: bool) -> None:
    x = torch.tensor(values, dtype=torch.float64 if double else torch.float32)
    data = encode_vector(x)
    assert torch.equal(decode_vector(data, x), x)
    assert len(data) <= 1 + x.numel() * x.element_size()


def test_a_vector_with_a_nan_is_refused() -> None:
    with pytest.raises(AtomError, match="not finite"):
        decode_vector(encode_vector(torch.tensor([1.0, math.nan])), torch.zeros(2))
