"""Top singular pairs against numpy's SVD, on the spectra that break naive iterations."""

import math
from itertools import compress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfw
from fedfw.checks import rows_within
from fedfw.linalg import singular
from fedfw.linalg.leading import spectral_bound
from fedfw.linalg.selection import first_argmax, first_top_k
from fedfw.linalg.singular import top_singular
from fedfw.linalg.squaring import leading_vector


def with_spectrum(sigma: list[float], rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    u, _ = torch.linalg.qr(torch.randn(rows, len(sigma), generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(
        torch.randn(columns, len(sigma), generator=generator, dtype=torch.float64)
    )
    return u @ torch.diag(torch.tensor(sigma, dtype=torch.float64)) @ v.T


MATRICES = {
    "gaussian": torch.randn(
        80, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ),
    "rank one": with_spectrum([3.0], 70, 50),
    "rank two": with_spectrum([3.0, 1.0], 50, 70),
    "clustered": with_spectrum([1.0, 1 - 1e-9, 1 - 1e-7, 0.9999] + [0.99] * 20, 60, 60),
    "equal": with_spectrum([2.0] * 40, 40, 40),
    "decaying": with_spectrum([2.0**-j for j in range(40)], 90, 45),
    "zero": torch.zeros(40, 50, dtype=torch.float64),
    "one row": torch.randn(1, 200, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
    "one column": torch.randn(
        200, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    ),
    "huge": 1e200 * with_spectrum([3.0, 2.0, 1.0], 40, 40),
    "tiny": 1e-200 * with_spectrum([3.0, 2.0, 1.0], 40, 40),
}


@pytest.fixture(autouse=True)
def _lanczos_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(singular, "DENSE_UP_TO", 0)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", MATRICES)
def test_value_vectors_and_bound(name: str, dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(singular, "DENSE_UP_TO", 10**9 if dense else 0)
    g = MATRICES[name]
    pair = top_singular(g[None], tol=1e-9)
    sigma = float(np.linalg.svd(g.numpy(), compute_uv=False)[0])
    assert float(pair.value[0]) == pytest.approx(sigma, rel=1e-7)
    assert float(pair.u.norm()) == pytest.approx(1.0)
    assert float(pair.v.norm()) == pytest.approx(1.0)
    scale = sigma or 1.0
    assert float(pair.u[0] @ (g / scale) @ pair.v[0]) == pytest.approx(sigma / scale, abs=1e-7)
    assert float(pair.upper[0]) >= sigma * (1 - 1e-12)


def test_a_matrix_stops_at_the_same_step_beside_one_that_is_proven_earlier() -> None:
    tail = torch.linspace(0.117, 0.045, 100).tolist()
    slow = with_spectrum([1.0, 0.5, *tail], 140, 140, seed=2)
    fast = with_spectrum([1.0, 0.1], 140, 140, seed=1)
    alone = singular._lanczos(slow[None], tol=0.1)
    beside = singular._lanczos(torch.stack([fast, slow]), tol=0.1)
    assert float((beside.v[1] - alone.v[0]).norm()) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bound_is_true_even_when_stopped_early(dtype: torch.dtype) -> None:
    G = torch.randn(20, 90, 70, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    G[10:] = torch.stack([with_spectrum([5.0, 1.0, 0.1], 90, 70, seed) for seed in range(10)])
    sigma = torch.linalg.matrix_norm(G, ord=2)
    for tol in (0.3, 1e-2, 1e-4):
        pair = top_singular(G.to(dtype), tol=tol)
        assert bool((pair.upper >= sigma * (1 - 1e-7)).all())
        assert bool((pair.value <= sigma * (1 + 1e-6)).all())
    # Where the rest is small the bound is tight.
    assert float((pair.upper[10:] / sigma[10:]).max()) < 1.03


# --- Bounds on the largest singular value are above it, and hardly so ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MATRICES)
def test_above_the_largest_singular_value_by_little(name: str, dtype: torch.dtype) -> None:
    matrix = MATRICES[name].to(dtype)
    if not bool(matrix.isfinite().all()):
        return  # too large for float32
    sigma = float(torch.linalg.matrix_norm(matrix.double(), ord=2))
    assert sigma * (1 - 1e-14) <= float(spectral_bound(matrix[None])[0]) <= sigma * 1.003 + 1e-150


# --- The leading eigenvector by squaring, against a decomposition ---


@pytest.mark.parametrize("m", [1, 2, 10, 64, 128])
@pytest.mark.parametrize("near", [0.5, 1e-3, 1e-7, 1e-12, 0.0])
def test_vectors_reach_the_largest_eigenvalue_and_bounds_are_above_it(m: int, near: float) -> None:
    """Whatever is between the two largest eigenvalues, and for one that is far above the others or
    far below one.
    """
    generator = torch.Generator().manual_seed(m)
    q = torch.linalg.qr(torch.randn(4, m, m, generator=generator, dtype=torch.float64)).Q
    values = torch.rand(4, m, generator=generator, dtype=torch.float64)
    values[:, 0] = 1.0
    values[:, 1:2] = 1.0 - near
    values[2, 2:] = 0.0
    scales = torch.tensor([1.0, 1e-30, 1e30, 7.0], dtype=torch.float64)
    b = scales[:, None, None] * (q * values.unsqueeze(1)) @ q.mT
    vectors, upper = leading_vector(b)
    units = vectors / vectors.norm(dim=1, keepdim=True)
    reached = (units.unsqueeze(1) @ b @ units.unsqueeze(2)).flatten() / scales
    assert bool((reached >= 1 - 1e-10).all())
    assert bool((upper / scales >= 1 - 1e-14).all())
    assert bool((upper / scales <= 1 + 1e-10).all())


# --- The projection on the ball of the k-support norm against the
# oracle's certificate ---


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
