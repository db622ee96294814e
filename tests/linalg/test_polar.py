"""Polar factors against numpy's SVD: what is returned lies inside the ball, and what is proven is
true.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfw.linalg import leading, polar
from fedfw.linalg.leading import Leading, leading_pairs
from fedfw.linalg.polar import LEAST_TOL, Polar, polar_factor
from tests.linalg.test_singular import with_spectrum


def gaussian(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


MATRICES = {
    "gaussian": gaussian(60, 60),
    "wide": gaussian(20, 90),
    "tall": gaussian(90, 50),
    "very tall": gaussian(300, 8),
    "one row": gaussian(1, 40),
    "one column": gaussian(40, 1),
    "one entry": gaussian(1, 1),
    "rank one": with_spectrum([3.0], 50, 40),
    "rank ten": with_spectrum([1.0] * 10, 50, 60),
    "equal": with_spectrum([2.0] * 40, 40, 40),
    "geometric": with_spectrum(list(np.geomspace(1, 1e-12, 64)), 64, 64),
    "geometric, wide": with_spectrum(list(np.geomspace(1, 1e-12, 30)), 30, 90),
    "a peak over noise": with_spectrum([1.0] + [1e-5] * 63, 64, 64),
    "nearly singular": with_spectrum([1.0] * 63 + [1e-7], 64, 64),
    "ones": torch.ones(30, 40, dtype=torch.float64),
    "identity": torch.eye(30, dtype=torch.float64),
    "zero": torch.zeros(20, 30, dtype=torch.float64),
    "tiny": 1e-30 * gaussian(40, 40, 1),
    "huge": 1e30 * gaussian(40, 40, 2),
    "mixed sizes": gaussian(40, 40, 3) * torch.logspace(-12, 0, 40, dtype=torch.float64),
}


@pytest.fixture(autouse=True)
def _iterate_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polar, "SVD_UP_TO", 0)


def sigma(matrix: torch.Tensor) -> np.ndarray:
    return np.linalg.svd(matrix.double().numpy(), compute_uv=False)


def check(g: torch.Tensor, found: Polar, tol: float) -> None:
    """Inside, as good as asked for, and with a bound that is true: all against numpy in float64."""
    for one, s, value, upper, error in zip(
        g, found.s, found.value, found.upper, found.error, strict=True
    ):
        nuclear = float(sigma(one).sum())
        assert sigma(s)[0] < 1
        assert float((one.double() * s).sum()) >= (1 - tol) * nuclear
        assert float(value) == pytest.approx(float((one.double() * s).sum()), rel=1e-9)
        assert float(upper) >= nuclear
        assert float(error) <= tol
        assert float(upper) - float(value) <= tol * float(upper)


def check_of_leading(g: torch.Tensor, found: Leading, k: int, tol: float) -> None:
    for one, u, v, value, upper, error in zip(
        g, found.u, found.v, found.value, found.upper, found.error, strict=True
    ):
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
@pytest.mark.parametrize("tol", [None, 1e-2, 1e-3, LEAST_TOL, 1e-6])
@pytest.mark.parametrize("name", MATRICES)
def test_inside_and_proven(name: str, tol: float | None, dtype: torch.dtype) -> None:
    g = MATRICES[name].to(dtype)[None]
    check(g, polar_factor(g, tol), tol or 1e-9)
    for k in {1, min(3, *g.shape[1:]), min(g.shape[1:])}:
        check_of_leading(g, leading_pairs(g, k, tol), k, tol or 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 24),
    columns=st.integers(1, 60),
    decades=st.floats(0, 14),
    rank=st.integers(1, 24),
    power=st.integers(-90, 90),
    seed=st.integers(0, 10**6),
    tol=st.sampled_from([1e-1, 1e-2, 1e-3, 1e-4]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_spectrum(
    rows: int,
    columns: int,
    decades: float,
    rank: int,
    power: int,
    seed: int,
    tol: float,
    dtype: torch.dtype,
) -> None:
    rank = min(rank, rows, columns)
    values = list(np.geomspace(1, 10**-decades, rank))
    g = (with_spectrum(values, rows, columns, seed) * 2.0**power).to(dtype)[None]
    check(g, polar_factor(g, tol), tol)
    check_of_leading(g, leading_pairs(g, rank, tol), rank, tol)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(40, 40), (30, 90)])
def test_no_proof_holds_for_what_is_not_finite(
    shape: tuple[int, int], dtype: torch.dtype, bad: float
) -> None:
    g = gaussian(*shape).to(dtype).repeat(3, 1, 1)
    g[1, 5, 7] = bad
    _, good = polar._candidates(g, torch.tensor(1e-1, dtype=torch.float64))
    assert good.tolist() == [True, False, True]


@pytest.mark.parametrize("wrong", ["huge", "flipped", "outside", "nan", "zero"])
def test_a_wrong_candidate_proves_nothing_false(wrong: str) -> None:
    g = gaussian(30, 30)
    u, values, vh = torch.linalg.svd(g)
    signs = torch.ones(30, dtype=torch.float64)
    signs[3] = -1
    candidate = {
        "huge": 1e3 * u @ vh,
        "flipped": u @ torch.diag(signs) @ vh,
        "outside": u @ torch.diag(1 + 0.9 * torch.linspace(0, 1, 30, dtype=torch.float64)) @ vh,
        "nan": torch.full_like(g, torch.nan),
        "zero": torch.zeros_like(g),
    }[wrong]
    found = polar._proven(g[None], candidate[None], torch.tensor(1e-3))
    assert not bool(found.error <= 1e-3)
    assert not bool(found.upper < values.sum())
    if bool(found.upper.isfinite()):
        assert sigma(found.s[0])[0] < 1


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
    check_of_leading(G, leading_pairs(G, 4, 1e-3), 4, 1e-3)
    assert decomposed == [1]
