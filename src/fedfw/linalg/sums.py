"""Sums of vectors that do not drift."""

import torch
from torch import Tensor


def exact_sum(rows: Tensor) -> Tensor:
    """Return the sum of rows (n, p) in float64 as two numbers a coordinate, (2, p): rounded, and
    what that lost.

    Neighbours are added first, then their sums, and what each addition lost is kept (Knuth's
    TwoSum): the two numbers together are off by 2^-105 of the largest partial sum, so a sum to
    which changes are added again and again does not drift.

    Examples
    --------
    >>> import torch
    >>> exact_sum(
    ...     torch.tensor([[1.0], [2.0**-60], [2.0**-60]], dtype=torch.float64)
    ... ).log2().tolist()
    [[0.0], [-59.0]]
    """
    sums = rows.double()
    lost = torch.zeros_like(sums[0])
    while len(sums) > 1:
        half = len(sums) // 2
        added, error = _two_sum(sums[:half], sums[half : 2 * half])
        lost = lost + error.sum(0)
        sums = torch.cat([added, sums[2 * half :]])
    return torch.stack(_two_sum(sums[0], lost))


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return a + b rounded, and what the rounding lost, which is a number of the same type."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)
