"""Top singular pairs against numpy's SVD, on the spectra that break naive iterations."""

import numpy as np
import pytest
import torch

from fedfw.linalg import singular
from fedfw.linalg.norms import spectral_bound
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
