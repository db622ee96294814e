"""The largest curvature of functions that are quadratic, from which step sizes are derived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import vhp

_WHOLE_HESSIAN = 64
"""Parameters up to which all second derivatives are worked out."""


def quadratic_smoothness(function: Callable[[Tensor], Tensor], start: Tensor) -> float | None:
    """Return the largest absolute eigenvalue of a quadratic function's Hessian; None for others.

    Examples
    --------
    >>> quadratic_smoothness(lambda x: 3 * x.square().sum(), torch.zeros(2))
    6.0
    """
    try:
        if not _is_quadratic(function, start):
            return None
    except RuntimeError:  # it has no second derivatives
        return None
    p = start.numel()

    def product(direction: Tensor) -> Tensor:
        """Return the Hessian times a vector (p,), in float64."""
        direction = direction.to(start).reshape(start.shape)
        return _hessian_product(function, start, direction).flatten().double()

    if p <= _WHOLE_HESSIAN:
        hessian = torch.stack([product(axis) for axis in torch.eye(p)])
        return float(torch.linalg.eigvalsh((hessian + hessian.mT) / 2).abs().max())
    from scipy.sparse.linalg import LinearOperator, eigsh

    def numpy_product(v: Any) -> Any:
        """Return the Hessian times a numpy vector (p,)."""
        return product(torch.from_numpy(v)).numpy()

    operator = LinearOperator((p, p), matvec=numpy_product, dtype=float)
    start_vector = torch.randn(p, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (largest,) = eigsh(operator, k=1, tol=1e-3, v0=start_vector.numpy(), return_eigenvectors=False)
    return abs(float(largest))


def _is_quadratic(function: Callable[[Tensor], Tensor], start: Tensor) -> bool:
    """Return whether the gradient is affine along random lines through the start, up to
    rounding.
    """
    generator = torch.Generator().manual_seed(0)

    def gradient(x: Tensor) -> Tensor:
        """Return the function's gradient at x, in the shape of the start."""
        leaf = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            (result,) = torch.autograd.grad(function(leaf), leaf)
        return result

    gradient_at_start = gradient(start)
    for _ in range(2):
        direction = torch.randn(start.shape, generator=generator).to(start) * (
            1 + start.abs().max()
        )
        slope = _hessian_product(function, start, direction)
        tolerance = torch.finfo(start.dtype).eps ** 0.5 * float(slope.abs().max())
        # On both sides, near and far: other functions differ from their tangent at one of them.
        for distance in (1.0, -30.0):
            error = (gradient(start + distance * direction) - gradient_at_start) / distance - slope
            if not bool((error.abs() <= tolerance).all()):
                return False
    return True


def _hessian_product(function: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> Tensor:
    """Return a function's second derivatives at x times a direction, in the shape of x."""
    product: Tensor = vhp(function, x, direction)[1]  # type: ignore[no-untyped-call]
    return product
