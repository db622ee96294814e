"""The sum of a stack of dense vectors."""

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from fedfw.linalg.compiled import ON_ONE_THREAD, REAL, compiled, may_be_handed_over


def exact_sum(rows: Tensor) -> Tensor:
    """Return the sum of rows (n, p) in float64 as two numbers a coordinate, (2, p): rounded, and what that lost.

    Neighbours are added first, then their sums, and what each addition lost is kept (Knuth's TwoSum): the two numbers
    together are off by 2^-105 of the largest partial sum, so a sum to which changes are added again and again does not
    drift.

    Examples
    --------
    >>> import torch
    >>> exact_sum(torch.tensor([[1.0], [2.0**-60], [2.0**-60]], dtype=torch.float64)).log2().tolist()
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


def add_rows(x: Tensor, rows: Tensor, factor: float) -> None:
    """x (p,) += factor times the sum of the rows (n, p), which is at least as exact as the type of x.

    Examples
    --------
    >>> import torch
    >>> x = torch.ones(2, dtype=torch.float64)
    >>> add_rows(x, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 0.5)
    >>> x.tolist()
    [3.0, 4.0]
    """
    fit = x.dtype in REAL and rows.dtype in REAL and x.shape == rows.shape[1:]
    # torch computes larger ones on several threads.
    if not fit or rows.numel() > ON_ONE_THREAD or not may_be_handed_over(x, rows):
        x.add_(rows.sum(0, dtype=x.dtype), alpha=factor)
        return
    doubles = x.dtype is torch.float64, rows.dtype is torch.float64
    assert compiled is not None
    compiled.add_rows(x.data_ptr(), doubles[0], rows.data_ptr(), doubles[1], *rows.shape, factor)
    increment_version(x)
