"""Integer, index-set and permutation codes: exact both ways, near the information they carry."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfw.atoms import bits
from fedfw.errors import AtomError


@st.composite
def index_sets(draw: st.DrawFn, largest: int = 3000) -> tuple[int, np.ndarray]:
    p = draw(st.integers(1, largest))
    k = draw(st.integers(1, p))
    seed = draw(st.integers(0, 2**32 - 1))
    return p, np.sort(np.random.default_rng(seed).choice(p, k, replace=False))


@given(st.integers(1, 10**30), st.data())
def test_integers_come_back(count: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, count - 1))
    encoded = bits.write_integer(number, count)
    assert 256 ** len(encoded) >= count  # enough
    assert len(encoded) == 0 or 256 ** (len(encoded) - 1) < count  # and no byte more
    assert bits.read_integer(bits.Reader(encoded), count) == number


@given(index_sets(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_index_sets_come_back(case: tuple[int, np.ndarray], signed: bool) -> None:
    p, indices = case
    extra = np.random.default_rng(p).integers(0, 2, len(indices) if signed else 0).astype(np.uint8)
    encoded = bits.write_index_set(indices, p, extra)
    reader = bits.Reader(encoded)
    back, tail = bits.read_index_set(reader, p, len(indices), len(extra))
    reader.finish()
    assert np.array_equal(back, indices)
    assert np.array_equal(tail, extra)
    assert bits.index_set_nbytes(indices[None], p, len(extra)) == len(encoded)


@given(index_sets(120_000))
@settings(max_examples=60, deadline=None)
def test_large_index_sets_come_back(case: tuple[int, np.ndarray]) -> None:
    p, indices = case
    reader = bits.Reader(bits.write_index_set(indices, p, np.empty(0, np.uint8)))
    assert np.array_equal(bits.read_index_set(reader, p, len(indices), 0)[0], indices)
    reader.finish()


@pytest.mark.parametrize(("p", "k"), [(7850, 79), (1000, 500), (100_000, 1000), (10**6, 10**4), (10**5, 99_000)])
def test_uniform_index_sets_are_near_the_information(p: int, k: int) -> None:
    information = (math.lgamma(p + 1) - math.lgamma(k + 1) - math.lgamma(p - k + 1)) / math.log(2) / 8
    indices = np.sort(np.random.default_rng(0).choice(p, k, replace=False))
    assert information <= bits.index_set_nbytes(indices[None], p, 0) <= 1.03 * information + 1


def test_small_index_sets_meet_the_information_exactly() -> None:
    for p, k in [(7850, 79), (10, 3), (10, 10), (60, 30), (10**6, 40)]:
        least = math.ceil(math.log2(math.comb(p, k)) / 8)
        assert bits.index_set_nbytes(np.arange(k)[None], p, 0) == least


@given(st.permutations(list(range(13))))
def test_permutations_come_back(order: list[int]) -> None:
    encoded = bits.write_permutation(np.array(order))
    assert len(encoded) == bits.permutation_nbytes(13) == math.ceil(math.log2(math.factorial(13)) / 8)
    assert bits.read_permutation(bits.Reader(encoded), 13).tolist() == order


def test_numbers_out_of_range_and_dirty_padding_are_refused() -> None:
    with pytest.raises(AtomError, match="not below 200"):
        bits.read_integer(bits.Reader(b"\xff"), 200)
    with pytest.raises(AtomError, match="padding"):
        bits.read_bits(bits.Reader(b"\xff"), 3)
