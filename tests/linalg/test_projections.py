"""The k-support norm and the projection on its ball against nested root finding and the oracle's
certificate.
"""

import math
from itertools import compress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

import fedfw
from fedfw.checks import rows_within
from fedfw.linalg.k_support import k_support_norm
from fedfw.linalg.selection import first_argmax, first_top_k


def inputs(p: int, rows: int = 6) -> dict[str, torch.Tensor]:
    x = torch.randn(rows, p, generator=torch.Generator().manual_seed(p), dtype=torch.float64)
    return {
        "gaussian": x,
        "ties": (2 * x).round() / 2,
        "all equal": x.sign(),
        "nearly equal": x.sign() * (1 + 1e-9 * x),
        "heavy tails": x * (3 * x).exp(),
        "mostly zero": torch.where(torch.arange(p) % 4 == 0, x, 0.0),
        "one huge": torch.where(torch.arange(p) == p // 2, 1e12, x),
    }


def sized(x: np.ndarray, k: int) -> float:
    """The k-support norm: the square root of the least sum x_j^2 / theta_j, where theta_j = min(1,
    |x_j| / level).
    """
    a = np.abs(x[x != 0])
    if len(a) <= k:
        return float(np.linalg.norm(a))
    level = brentq(
        lambda level: np.minimum(1, a / level).sum() - k,
        a.min() / 2,
        2 * a.sum(),
        xtol=1e-300,
        rtol=1e-15,
    )
    return float(np.sqrt((a**2 / np.minimum(1, a / level)).sum()))


@pytest.mark.parametrize("k", [1, 2, 5, 11, 12, 40])
@pytest.mark.parametrize("kind", ["gaussian", "ties", "all equal", "heavy tails", "mostly zero"])
def test_norms_agree_with_root_finding(kind: str, k: int) -> None:
    x = inputs(12)[kind]
    norms = k_support_norm(x, k)
    assert norms.tolist() == pytest.approx([sized(row, k) for row in x.numpy()], rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1, 2, 7, 300])
def test_the_oracle_certifies_the_projection(p: int, dtype: torch.dtype) -> None:
    """w is the projection of v if and only if no point s of the ball has <v - w, s - w> > 0."""
    kinds = [kind for kind, values in inputs(p).items() for _ in values]
    v = torch.cat(list(inputs(p).values())).to(dtype)
    rounding = 8 if dtype is torch.float32 else 1e4
    for k in {1, 2, p // 3, p - 1, p, p + 3} - {0}:
        for r in (1e-3, 1.0, 30.0):
            D = fedfw.KSupport(k, r)
            w = D.project(v, batch=True)
            assert w.dtype is dtype
            inside = torch.as_tensor(D.contains(w, batch=True))
            assert bool(inside.all()), (list(compress(kinds, ~inside)), k, r)
            apart = v.double() - w.double()
            s = D.lmo(-apart, batch=True, precision=torch.float64).dense(torch.float64)
            excess = (apart * (s - w)).sum(1) / (r * v.double().norm(dim=1)).clamp(min=1e-300)
            refuted = ~(excess <= rounding * torch.finfo(dtype).eps)
            assert not bool(refuted.any()), (list(compress(kinds, refuted)), k, r)


# --- Ties go to the lowest index; the water level solves its equation ---


@pytest.mark.parametrize("p", [1, 5, 4096, 5000, 8192, 100_001])
def test_first_argmax(p: int) -> None:
    a = torch.randint(
        0, 3 if p < 100 else 1000, (7, p), generator=torch.Generator().manual_seed(p)
    ).float()
    expected = torch.stack([(row == row.max()).nonzero()[0, 0] for row in a])
    assert torch.equal(first_argmax(a), expected)
    assert torch.equal(first_argmax(torch.ones(2, p)), torch.zeros(2, dtype=torch.int64))


@given(st.integers(1, 40), st.data())
@settings(deadline=None)
def test_first_top_k_is_the_stable_sort(p: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, p))
    rows = data.draw(
        st.lists(st.lists(st.integers(0, 4), min_size=p, max_size=p), min_size=1, max_size=3)
    )
    a = torch.tensor(rows).float()
    expected = a.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    assert torch.equal(first_top_k(a, k), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [1e-30, 1.0, 1e30])
def test_rows_within_looks_at_each_row_whatever_overflows(limit: float, dtype: torch.dtype) -> None:
    unit = torch.full((40, 4), 0.5, dtype=dtype)
    assert rows_within(unit * limit * 0.99, limit)
    assert not rows_within(torch.cat([unit, 2.5 * unit]) * limit, limit)
    assert not rows_within(unit * math.nan, limit)
    assert not rows_within(unit * math.inf, torch.finfo(torch.float64).max)
