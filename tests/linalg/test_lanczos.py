"""Lanczos steps, compiled and by torch: the same matrices, bases that stay orthonormal, spaces that
are exhausted.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedfw.linalg import lanczos
from fedfw.linalg.lanczos import advance
from fedfw.linalg.singular import top_singular

DTYPES = (torch.float32, torch.float64)
needs_compiled = pytest.mark.skipif(
    lanczos._compiled is None, reason="there was no compiler when fedfw was installed"
)


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def taken(g: Tensor, steps: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """The basis (n, steps + 1, columns) and both diagonals (n, steps) after ``steps`` steps, four
    at a time.
    """
    n, _, columns = g.shape
    basis = torch.full(
        (n, steps + 1, columns), torch.nan, dtype=g.dtype
    )  # what is not yet filled in must not be read
    start = drawn((n, columns), torch.float64, seed)
    basis[:, 0] = (start / start.norm(dim=1, keepdim=True)).to(g.dtype)
    on, off = torch.zeros(n, steps, dtype=torch.float64), torch.zeros(n, steps, dtype=torch.float64)
    for first in range(0, steps, 4):
        advance(g, basis, first, min(first + 4, steps), on, off)
    return basis, on, off


@given(
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(DTYPES),
    st.integers(0, 10**6),
)
def test_gg_in_the_basis_is_the_tridiagonal_matrix(
    n: int, r: int, c: int, dtype: torch.dtype, seed: int
) -> None:
    g = drawn((n, r, c), dtype, seed)
    steps = min(r, c, 6)
    basis, on, off = taken(g, steps)
    eps = torch.finfo(dtype).eps
    for matrix, vectors, diagonal, beside in zip(g.double(), basis.double(), on, off, strict=True):
        kept = vectors[:steps]
        norms = kept.norm(dim=1)
        # All vectors have norm one, and only those after the space is exhausted are zero.
        assert bool((((norms - 1).abs() < 100 * eps) | (norms == 0)).all())
        assert float((kept @ kept.T - torch.diag(norms.square())).abs().max()) < 1e3 * eps
        inside = kept @ matrix.T @ matrix @ kept.T
        tridiagonal = diagonal.diag() + beside[:-1].diag(1) + beside[:-1].diag(-1)
        assert float((inside - tridiagonal).abs().max()) <= 1e3 * eps * float(matrix.square().sum())


@needs_compiled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 5, 3), (3, 7, 17), (2, 64, 64), (1, 131, 257), (1, 258, 129)]
)
def test_compiled_and_torch_agree(
    dtype: torch.dtype, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    g, steps = drawn(shape, dtype), min(*shape[1:], 5)
    fused = taken(g, steps)
    monkeypatch.setattr(lanczos, "_compiled", None)
    tolerance = 1e4 * torch.finfo(dtype).eps
    for one, other in zip(fused[1:], taken(g, steps)[1:], strict=True):
        # The last entry beside the diagonal is noise where the space ends, and noise has no digits.
        assert torch.allclose(one[:, : steps - 1], other[:, : steps - 1], rtol=tolerance, atol=0)


@pytest.mark.parametrize("with_compiler", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_exhausted_space_gives_zeros_and_never_noise(
    dtype: torch.dtype, with_compiler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_compiler:
        monkeypatch.setattr(lanczos, "_compiled", None)
    g = 3 * torch.eye(30, dtype=dtype)[None]  # every vector is an eigenvector
    basis, on, off = taken(g, 8)
    assert on[0, 0] == pytest.approx(9)
    assert not off.any()
    assert not basis[:, 1:].any()
    zero = taken(torch.zeros(1, 9, 6, dtype=dtype), 4)
    assert not zero[1].any()
    assert not zero[2].any()


@pytest.mark.parametrize("with_compiler", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 200, 150), (1, 150, 200), (2, 131, 133)])
def test_the_largest_singular_value(
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    with_compiler: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not with_compiler:
        monkeypatch.setattr(lanczos, "_compiled", None)
    g = drawn(shape, dtype)
    pair = top_singular(g, tol=1e-6)
    expected = np.linalg.svd(g.double().numpy(), compute_uv=False)[:, 0]
    assert pair.value.numpy() == pytest.approx(expected, rel=2e-6)
    assert bool((pair.upper >= torch.from_numpy(expected) * (1 - 1e-6)).all())
