"""The leading eigenvector by squaring, against a decomposition."""

from __future__ import annotations

import pytest
import torch

from fedfw.linalg.squaring import leading_vector


@pytest.mark.parametrize("m", [1, 2, 10, 64, 128])
@pytest.mark.parametrize("near", [0.5, 1e-3, 1e-7, 1e-12, 0.0])
def test_vectors_reach_the_largest_eigenvalue_and_bounds_are_above_it(m: int, near: float) -> None:
    """Whatever is between the two largest eigenvalues, and for one that is far above the others or far below one."""
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


def test_matrices_of_zeros_and_of_one_row() -> None:
    b = torch.zeros(2, 3, 3, dtype=torch.float64)
    b[1] = torch.ones(3, 3)
    vectors, upper = leading_vector(b)
    assert vectors[0].tolist() == [0.0, 0.0, 0.0]
    assert float(upper[0]) == 0.0
    assert torch.allclose(vectors[1] / vectors[1].norm(), torch.full((3,), 3**-0.5, dtype=torch.float64))
    assert float(upper[1]) == pytest.approx(3.0, rel=1e-11)
