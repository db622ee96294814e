"""The geometry of Newton steps: lengths of axes, directions without curvature, and their names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfw.estimators.sums import Sums

_NULL = 1e-12
"""Eigenvalues of the Hessian, scaled to a diagonal of ones, that count as zero."""
_PART_OF_DIRECTION = 1e-6
"""Shares of a null direction's largest entry from which a column is part of it."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """The Hessian at the start as a scale for all points: lengths (q,) of the parameters'
    axes, and the directions (q, k) in which no predictor changes, orthonormal in units of these
    lengths.

    Of the null directions, ``structural`` (q, s) are those of the model itself.
    """

    lengths: Tensor
    null: Tensor
    structural: Tensor

    @classmethod
    def of(cls, sums: Sums, structural: Tensor) -> Geometry:
        hessian = sums.curvature
        diagonal = hessian.diagonal()
        lengths = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
        # Directions of the model that move fixed parameters do not exist among the free ones.
        whole = (structural.norm(dim=0) - 1).abs() < 1e-9
        scaled = _orthonormal(lengths.unsqueeze(1) * structural[:, whole])
        correlations = hessian / lengths / lengths.unsqueeze(1)
        values, vectors = torch.linalg.eigh(correlations)
        null = vectors[:, values <= _NULL * max(1, len(values))]
        return cls(lengths, null, scaled)

    def newton_step(self, sums: Sums) -> Tensor:
        """Return -H^+ g (q,), without a component along null directions."""
        q = len(self.lengths)
        if q == 0:
            return torch.zeros(0, dtype=torch.float64)
        scaled = sums.curvature / self.lengths / self.lengths.unsqueeze(1)
        # Rows whose curvature has vanished must not decide which numbers are small.
        diagonal = scaled.diagonal()
        own = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
        scaled = scaled / own / own.unsqueeze(1)
        null = _orthonormal(own.unsqueeze(1) * self.null)
        gradient = sums.gradient / self.lengths / own
        gradient = gradient - null @ (null.T @ gradient)
        values, vectors = torch.linalg.eigh(scaled + null @ null.T)
        inverse = 1 / values.clamp(min=1e-15)
        step = -vectors @ (inverse * (vectors.T @ gradient))
        along: Tensor = step - null @ (null.T @ step)
        return along / own / self.lengths

    def length(self, step: Tensor) -> float:
        """Return the length of a step in units of the start's Hessian."""
        return float((self.lengths * step).norm())

    def named(self, direction: Tensor, names: list[str], share: float) -> tuple[str, ...]:
        """Return the names of the parameters that a direction (q,) moves, intercepts only where
        nothing else moves.
        """
        sizes = (self.lengths * direction).abs()
        chosen = [
            name
            for name, size in zip(names, sizes.tolist(), strict=True)
            if size > share * float(sizes.max())
        ]
        variables = [name for name in chosen if not name.startswith("intercept")]
        return tuple(variables or chosen)

    def collinear(self, names: list[str]) -> tuple[str, ...]:
        """Return the names of the parameters that the data alone make collinear."""
        kept = self.structural
        others = self.null - kept @ (kept.T @ self.null)
        sizes = torch.linalg.vector_norm(others, dim=1)
        if not len(sizes) or float(sizes.max()) < _PART_OF_DIRECTION:
            return ()
        pairs = zip(names, sizes.tolist(), strict=True)
        return tuple(name for name, size in pairs if size > _PART_OF_DIRECTION)

    def shortest(self, theta: Tensor, coefficients: Tensor) -> Tensor:
        """Return the point (q,) with the same predictors and the shortest coefficients, and of
        those the one with the shortest intercepts.
        """
        free = self.null / self.lengths.unsqueeze(1)
        for part in (coefficients, ~coefficients):
            if not free.shape[1] or not bool(part.any()):
                continue
            free = free / torch.linalg.vector_norm(free, dim=0)
            left, values, right = torch.linalg.svd(free[part], full_matrices=True)
            rank = int((values > 1e-9).sum())
            weights = (left[:, :rank].T @ theta[part]) / values[:rank]
            theta = theta - free @ (right[:rank].T @ weights)
            free = free @ right[rank:].T
        return theta


def _orthonormal(columns: Tensor) -> Tensor:
    """Return an orthonormal basis (q, k) of what columns (q, k) of full rank span."""
    if not columns.shape[1]:
        return columns
    basis: Tensor = torch.linalg.qr(columns)[0]
    return basis
