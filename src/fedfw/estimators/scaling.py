"""Standardisation without pooling: means and deviations from one exchange of sums.

Public means and scales need no exchange. Else every client sends its weight, the sums and the sums
of squares of its columns. With the means (1/W) sum w x and the deviations
sqrt((1/W) sum w (x - mean)^2) of all rows, the scaled columns are z = (x - mean) / scale, and
coefficients b of z are coefficients b / scale of x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    def public(cls, scales: Mapping[str, tuple[float, float]], names: Sequence[str]) -> Scaling:
        """Return the scaling of public numbers: a mean and a scale for every column, by its name.

        No client sends anything for it.
        """
        missing = [name for name in names if name not in scales]
        unknown = [name for name in scales if name not in names]
        if missing or unknown:
            which = ", ".join([*missing, *unknown][:8])
            raise ValueError(
                f"scales: {which} {'has none' if missing else 'is no column'}, expected a mean and "
                "a scale for every column; (0, 1) leaves a column as it is"
            )
        pairs = []
        for name in names:
            pair = tuple(scales[name])
            if len(pair) != 2 or not math.isfinite(pair[0]) or not 0 < pair[1] < math.inf:
                raise ValueError(
                    f"scales[{name!r}] = {scales[name]!r}, expected (mean, scale): finite numbers, "
                    "the scale above 0"
                )
            pairs.append(pair)
        mean, scale = torch.tensor(pairs, dtype=torch.float64).T
        return cls(mean, scale)

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


def choose_scaling(
    sites: Sites,
    *,
    standardize: bool,
    scales: Mapping[str, tuple[float, float]] | None,
    private: bool,
) -> Scaling:
    """Return no scaling, that of public numbers, or that of an exchange of exact sums, which a
    private fit does not have.
    """
    if not standardize:
        if scales is not None:
            raise ValueError("scales= changes nothing beside standardize=False: leave one out")
        return Scaling.none(sites.p)
    if scales is not None:
        return Scaling.public(scales, sites.names)
    if private:
        raise ValueError(
            "standardize=True sends exact sums of the columns, which privacy= does not cover: "
            'expected scales={"age": (mean, scale), ...}, public numbers for every column, or '
            "standardize=False"
        )
    return Scaling.from_sites(sites)
