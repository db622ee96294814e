"""The radius of a constraint by cross-validation within sites.

Every site divides its own rows into folds. A fit sees all folds but one of every site, and each site
scores it on the rows that were left out. A score is a sum over rows, so a site sends one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Fit = Callable[[float, Array], Any]
"""From a radius and the rows (m,) of training, a mask, to a fitted model."""
Score = Callable[[Any, Array], float]
"""From a model and the rows (m,) that its fit has not seen, a mask, to a loss summed over them."""


def folds_within(sites: Array, folds: int, seed: int) -> Array:
    """Return the fold (m,) of each row: every site's rows are shuffled and dealt out in turn."""
    draw = np.random.default_rng(seed)
    fold = np.empty(len(sites), dtype=np.int64)
    for site in np.unique(sites):
        own = np.flatnonzero(sites == site)
        fold[draw.permutation(own)] = np.arange(len(own)) % folds
    return fold


def held_out_losses(
    fit: Fit, score: Score, radii: Sequence[float], sites: Array, folds: int, seed: int
) -> list[float]:
    """Return the held-out loss of each radius, a row."""
    fold = folds_within(sites, folds, seed)
    losses = []
    for radius in radii:
        total = 0.0
        for k in range(folds):
            total += score(fit(radius, fold != k), fold == k)
        losses.append(total / len(sites))
    return losses


def least(radii: Sequence[float], losses: Sequence[float]) -> float:
    """Return the radius with the least loss; the smallest of equals."""
    return min(zip(losses, radii, strict=True))[1]
