"""Standardisation without pooling: means and deviations from one exchange of sums.

Every client sends its weight, the sums and the sums of squares of its columns. With the means
(1/W) sum w x and the deviations sqrt((1/W) sum w (x - mean)^2) of all rows, the scaled columns are
z = (x - mean) / scale, and coefficients b of z are coefficients b / scale of x.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfw.estimators.sites import Sites

_CONSTANT = 1e-10
"""A column whose deviation is below this share of its largest magnitude counts as constant."""


@dataclass(frozen=True)
class Scaling:
    """Means and scales of the columns, (p,) each."""

    mean: Tensor
    scale: Tensor
    bytes: int = 0
    """Bytes that all clients sent for it."""

    @classmethod
    def none(cls, p: int) -> Scaling:
        """Return the scaling that changes nothing."""
        return cls(torch.zeros(p, dtype=torch.float64), torch.ones(p, dtype=torch.float64))

    @classmethod
    def from_sites(cls, sites: Sites) -> Scaling:
        """Return the scaling of all rows, from sums over each client's rows.

        Sums of squares are taken about the mean of the first exchange's sums: the difference of
        two large sums would lose the deviation of columns such as a year.
        """
        weight = sum(float(site.row_weights.sum()) for site in sites)
        totals = torch.stack([site.row_weights @ site.X for site in sites])
        mean = totals.sum(0) / weight
        squares = torch.stack([site.row_weights @ (site.X - mean).square() for site in sites])
        deviation = (squares.sum(0) / weight).sqrt()
        largest = torch.stack([site.X.abs().amax(0) for site in sites]).amax(0)
        constant = deviation <= _CONSTANT * largest
        scale = torch.where(constant, 1.0, deviation)
        numbers = 1 + 2 * sites.p
        return cls(mean, scale, bytes=8 * numbers * len(sites))

    def to_scaled(self, X: Tensor) -> Tensor:
        """Return the columns of X (m, p) with mean 0 and deviation 1."""
        return (X - self.mean) / self.scale

    def to_original(self, coef: Tensor, intercept: Tensor) -> tuple[Tensor, Tensor]:
        """Return coefficients (..., p) and intercepts (...) for columns that are not scaled."""
        original = coef / self.scale
        return original, intercept - original @ self.mean
