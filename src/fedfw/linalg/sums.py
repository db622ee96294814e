"""Sums and multiples of dense vectors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from fedfw.linalg.compiled import ON_ONE_THREAD, REAL, compiled, may_be_handed_over


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


def times(x: Tensor, factor: float) -> Tensor:
    """The multiple factor x; torch's bits.

    Examples
    --------
    >>> import torch
    >>> times(torch.tensor([1.0, 2.0]), 0.5).tolist()
    [0.5, 1.0]
    """
    if x.dtype not in REAL or x.numel() > ON_ONE_THREAD or not may_be_handed_over(x):
        return x * factor
    into = torch.empty_like(x)
    assert compiled is not None
    compiled.times(x.data_ptr(), x.numel(), x.dtype is torch.float64, into.data_ptr(), factor)
    return into


def square(x: Tensor) -> float:
    """The sum of the squares of all entries of x, which is at least as exact as its type; not finite where x is not.

    Examples
    --------
    >>> import torch
    >>> square(torch.tensor([3.0, 4.0]))
    25.0
    """
    if x.dtype not in REAL or x.numel() > ON_ONE_THREAD or not may_be_handed_over(x):
        row = x.reshape(-1)
        return torch.dot(row, row).item()
    assert compiled is not None
    found: float = compiled.square(x.data_ptr(), x.numel(), x.dtype is torch.float64)
    return found
