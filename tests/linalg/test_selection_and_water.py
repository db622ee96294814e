"""Ties go to the lowest index; the water level solves its equation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfw
from fedfw.checks import rows_within
from fedfw.linalg.selection import descending, first_argmax, first_top_k, kth_largest, power_of_two
from fedfw.linalg.water import water_fill


@pytest.mark.parametrize("p", [1, 5, 4096, 5000, 8192, 100_001])
def test_first_argmax(p: int) -> None:
    a = torch.randint(0, 3 if p < 100 else 1000, (7, p), generator=torch.Generator().manual_seed(p)).float()
    expected = torch.stack([(row == row.max()).nonzero()[0, 0] for row in a])
    assert torch.equal(first_argmax(a), expected)
    assert torch.equal(first_argmax(torch.ones(2, p)), torch.zeros(2, dtype=torch.int64))


@given(st.integers(1, 40), st.data())
@settings(deadline=None)
def test_first_top_k_is_the_stable_sort(p: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, p))
    rows = data.draw(st.lists(st.lists(st.integers(0, 4), min_size=p, max_size=p), min_size=1, max_size=3))
    a = torch.tensor(rows).float()
    expected = a.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    assert torch.equal(first_top_k(a, k), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_descending_is_the_sort_and_leaves_its_argument_alone(dtype: torch.dtype) -> None:
    a = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).to(dtype).mul_(4).round_()
    before = a.clone()
    assert torch.equal(descending(a), a.sort(dim=1, descending=True).values)
    assert torch.equal(descending(a[:, ::2]), a[:, ::2].sort(dim=1, descending=True).values)
    assert torch.equal(a, before)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.floats(0.01, 5), st.floats(0.001, 0.999))
def test_water_fills_to_the_total(values: list[float], cap: float, share: float) -> None:
    v = torch.tensor([values], dtype=torch.float64)
    total = share * cap * len(values)
    for bound in (cap, math.inf):
        x = water_fill(v, total, bound)
        assert float(x.sum()) == pytest.approx(total, rel=1e-9, abs=1e-9)
        shift = (v - x)[(x > 0) & (x < bound)]  # one theta for all that are not at a bound
        assert not len(shift) or float(shift.max() - shift.min()) <= 1e-9


def test_far_points_are_projected_inside() -> None:
    assert fedfw.Simplex(1.0).project(torch.tensor([1e17, 0.0])).tolist() == [1.0, 0.0]


def test_powers_of_two_lie_above_by_at_most_a_factor_of_two() -> None:
    numbers = torch.tensor([1e-300, 3.0, 4.0, 5.0, 1e300], dtype=torch.float64)
    ratio = power_of_two(numbers) / numbers
    assert bool(((ratio > 1) & (ratio <= 2)).all())


@pytest.mark.parametrize("k", [1, 2, 50])
def test_the_kth_largest_entry_is_that_of_the_sort(k: int) -> None:
    a = torch.randint(0, 9, (5, 50), generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(kth_largest(a, k), a.sort(dim=1, descending=True).values[:, k - 1 : k])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [1e-30, 1.0, 1e30])
def test_rows_within_looks_at_each_row_whatever_overflows(limit: float, dtype: torch.dtype) -> None:
    unit = torch.full((40, 4), 0.5, dtype=dtype)
    assert rows_within(unit * limit * 0.99, limit)
    assert not rows_within(torch.cat([unit, 2.5 * unit]) * limit, limit)
    assert not rows_within(unit * math.nan, limit)
    assert not rows_within(unit * math.inf, torch.finfo(torch.float64).max)
