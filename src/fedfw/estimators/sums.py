"""The sums over its rows that a site returns, which add up over sites."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

_BYTES = 8
"""Of a number in float64."""


@dataclass(frozen=True, eq=False)
class Sums:
    """A site's sums for one vector of q parameters, or those of all sites together.

    Parameters
    ----------
    rows, weight : float
        The number of rows and the sum of their weights.
    value : float
        The negative log-likelihood (Gaussian: half the weighted sum of squares).
    gradient : Tensor
        (q,), by the parameters.
    hessian : Tensor, optional
        (q, q).
    outer : Tensor, optional
        (q, q): the sum of outer products of the rows' gradients.

    Examples
    --------
    >>> import torch
    >>> one = Sums(2, 2.0, 1.5, torch.ones(3))
    >>> (one + one).value, one.bytes
    (3.0, 48)
    """

    rows: int
    weight: float
    value: float
    gradient: Tensor
    hessian: Tensor | None = None
    outer: Tensor | None = None

    def __add__(self, other: Sums) -> Sums:
        """Return the sums over both."""
        return Sums(
            self.rows + other.rows,
            self.weight + other.weight,
            self.value + other.value,
            self.gradient + other.gradient,
            _added(self.hessian, other.hessian),
            _added(self.outer, other.outer),
        )

    @property
    def curvature(self) -> Tensor:
        """Return the Hessian (q, q); refuse sums that were asked for without it."""
        if self.hessian is None:
            raise ValueError("the sums have no Hessian, expected sums(..., hessian=True)")
        return self.hessian

    @property
    def bytes(self) -> int:
        """Return the bytes that travel: numbers in float64, symmetric matrices as triangles."""
        q = len(self.gradient)
        matrices = [matrix for matrix in (self.hessian, self.outer) if matrix is not None]
        return _BYTES * (3 + q + len(matrices) * (q * (q + 1) // 2))


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the sum of two matrices; None where one is missing."""
    return None if one is None or other is None else one + other


def restricted(sums: Sums, free: Tensor) -> Sums:
    """Return the sums for those parameters alone that the mask ``free`` (q,) names."""
    hessian = None if sums.hessian is None else sums.hessian[free][:, free]
    outer = None if sums.outer is None else sums.outer[free][:, free]
    return replace(sums, gradient=sums.gradient[free], hessian=hessian, outer=outer)
