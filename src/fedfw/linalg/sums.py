"""The sum of a stack of dense vectors."""

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
