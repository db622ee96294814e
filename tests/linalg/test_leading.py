"""Leading singular pairs against numpy's SVD: what is returned lies inside, and what is proven is true."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfw.linalg import leading
from fedfw.linalg.leading import Leading, leading_pairs
from fedfw.linalg.polar import LEAST_TOL
from tests.linalg.test_polar import MATRICES, gaussian, sigma
from tests.linalg.test_singular import with_spectrum


def check(g: torch.Tensor, found: Leading, k: int, tol: float) -> None:
    for one, u, v, value, upper, error in zip(g, found.u, found.v, found.value, found.upper, found.error, strict=True):
        best = float(sigma(one)[:k].sum())
        assert u.shape == (g.shape[1], k)
        assert v.shape == (g.shape[2], k)
        assert sigma(u)[0] < 1
        assert sigma(v)[0] < 1
        assert float((one.double() * (u @ v.mT)).sum()) >= (1 - tol) * best
        assert float(value) == pytest.approx(float((one.double() * (u @ v.mT)).sum()), rel=1e-9)
        assert float(upper) >= best
        assert float(error) <= tol


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tol", [None, 1e-2, 1e-3, LEAST_TOL])
@pytest.mark.parametrize("name", MATRICES)
def test_inside_and_proven(name: str, tol: float | None, dtype: torch.dtype) -> None:
    g = MATRICES[name].to(dtype)[None]
    for k in {1, min(3, *g.shape[1:]), min(g.shape[1:])}:
        check(g, leading_pairs(g, k, tol), k, tol or 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 20),
    columns=st.integers(1, 50),
    decades=st.floats(0, 14),
    k=st.integers(1, 20),
    power=st.integers(-90, 90),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_spectrum(
    rows: int, columns: int, decades: float, k: int, power: int, seed: int, dtype: torch.dtype
) -> None:
    small = min(rows, columns)
    g = with_spectrum(list(np.geomspace(1, 10**-decades, small)), rows, columns, seed) * 2.0**power
    check(g.to(dtype)[None], leading_pairs(g.to(dtype)[None], min(k, small), 1e-3), min(k, small), 1e-3)


def test_wrong_eigenvectors_lead_to_a_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second matrix of a stack is given eigenvectors that are not those of its Gram matrix."""
    eigh, by_svd, decomposed = torch.linalg.eigh, leading._by_svd, []

    def wrong(gram: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = eigh(gram)
        vectors[1] = torch.eye(gram.shape[1], dtype=gram.dtype)
        return values, vectors

    def counted(a: torch.Tensor, k: int) -> Leading:
        decomposed.append(len(a))
        return by_svd(a, k)

    monkeypatch.setattr(torch.linalg, "eigh", wrong)
    monkeypatch.setattr(leading, "_by_svd", counted)
    monkeypatch.setattr(leading, "one_by_one", lambda each, g: each(g))  # as on a GPU
    G = torch.stack([gaussian(20, 30, seed) for seed in range(3)])
    check(G, leading_pairs(G, 4, 1e-3), 4, 1e-3)
    assert decomposed == [1]


def test_ordinary_matrices_need_no_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "_by_svd", None)
    for name in ("gaussian", "wide", "tall", "rank one", "rank ten", "equal", "geometric", "zero", "huge", "tiny"):
        leading_pairs(MATRICES[name].float()[None], 5, 1e-3)


def test_a_stack_gives_the_bits_of_its_matrices() -> None:
    G = torch.stack([gaussian(30, 40, seed) for seed in range(3)]).float()
    together = leading_pairs(G, 4, 1e-3)
    for i in range(3):
        alone = leading_pairs(G[i : i + 1], 4, 1e-3)
        assert torch.equal(alone.u[0], together.u[i])
        assert torch.equal(alone.v[0], together.v[i])
