"""Bounds on the largest singular value are above it, and hardly so."""

from __future__ import annotations

import pytest
import torch

from fedfw.linalg.norms import spectral_bound

from .test_singular import MATRICES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MATRICES)
def test_above_the_largest_singular_value_by_little(name: str, dtype: torch.dtype) -> None:
    matrix = MATRICES[name].to(dtype)
    if not bool(matrix.isfinite().all()):
        return  # too large for float32
    sigma = float(torch.linalg.matrix_norm(matrix.double(), ord=2))
    assert sigma * (1 - 1e-14) <= float(spectral_bound(matrix[None])[0]) <= sigma * 1.003 + 1e-150


def test_matrices_of_a_stack_do_not_know_of_each_other() -> None:
    stack = torch.randn(5, 7, 12, generator=torch.Generator().manual_seed(0))
    stack[2] *= 1e20
    alone = torch.cat([spectral_bound(one[None]) for one in stack])
    assert torch.allclose(spectral_bound(stack), alone, rtol=1e-12)
