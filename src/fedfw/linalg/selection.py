"""The largest entries of each row, where ties always go to the lowest index, and norms of rows."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedfw.checks import holds, is_postponed

_SAFE_NORMS = (1e-120, 1e150)
"""Norms between which no square that matters has overflowed or underflowed."""


def first_argmax(a: Tensor) -> Tensor:
    """Return the index of the first largest entry of each row.

    Parameters
    ----------
    a : Tensor
        Shape (n, p).

    Returns
    -------
    Tensor
        Integers of shape (n,).

    Notes
    -----
    On the CPU numpy compares with vector instructions, and torch does not: it takes several times
    as long.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.selection import first_argmax
    >>> first_argmax(torch.tensor([[1.0, 5.0, 5.0], [2.0, 0.0, 1.0]])).tolist()
    [1, 0]
    """
    if (
        a.device.type != "cpu" or a.requires_grad or a.dtype is torch.bfloat16
    ):  # which numpy does not have
        return a.argmax(1)
    return torch.from_numpy(a.numpy().argmax(1))


def first_top_k(a: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest entries of each row, in ascending order; of equal entries
    the first are taken.

    Parameters
    ----------
    a : Tensor
        Shape (n, p).
    k : int
        From 1 to p.

    Returns
    -------
    Tensor
        Integers of shape (n, k).

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.selection import first_top_k
    >>> first_top_k(torch.tensor([[1.0, 5.0, 3.0, 3.0]]), 2).tolist()
    [[1, 2]]
    """
    n, p = a.shape
    kth_largest = a.topk(k, dim=1).values[:, -1:]
    above = a > kth_largest
    tied = a == kth_largest
    room = k - above.sum(1, keepdim=True)
    selected = above | (tied & (tied.cumsum(1) <= room))
    if not a.is_cuda:
        return selected.nonzero()[:, 1].view(n, k)
    # On a GPU `nonzero` would make the host wait for the count. Instead the j-th selected index is
    # scattered to place j, and all other indices to place k, which is cut off.
    places = torch.where(selected, selected.cumsum(1) - 1, k)
    columns = torch.arange(p, device=a.device).expand(n, p)
    return places.new_empty(n, k + 1).scatter_(1, places, columns)[:, :k]


def descending(a: Tensor) -> Tensor:
    """Return the entries of each row in descending order.

    Parameters
    ----------
    a : Tensor
        Shape (n, p), float32 or float64.

    Returns
    -------
    Tensor
        A new tensor of shape (n, p).

    Notes
    -----
    On the CPU numpy sorts with vector instructions, and torch sorts indices as well: on one core
    numpy takes an eighth of the time for a million numbers.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.selection import descending
    >>> descending(torch.tensor([[1.0, 5.0, 3.0]])).tolist()
    [[5.0, 3.0, 1.0]]
    """
    if a.device.type != "cpu" or a.requires_grad:
        return a.sort(dim=1, descending=True).values
    return torch.from_numpy(np.sort(a.numpy(), axis=1)).flip(1)


def power_of_two(largest: Tensor) -> Tensor:
    """Return for each number a power of two near it, by which others can be divided without
    rounding.

    Parameters
    ----------
    largest : Tensor
        Float64, of any shape; finite and at least 0.

    Returns
    -------
    Tensor
        From the number to twice it where that is between 2^-1000 and 2^1000, and 1 for 0.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.selection import power_of_two
    >>> power_of_two(torch.tensor([5.0, 0.25, 0.0], dtype=torch.float64)).tolist()
    [8.0, 0.5, 1.0]
    """
    exponent = torch.frexp(largest).exponent.clamp(-1000, 1000)
    return torch.exp2(exponent.to(largest.dtype))


def row_norms(x: Tensor) -> Tensor:
    """Return the l2 norm of each row, computed in float64.

    Parameters
    ----------
    x : Tensor
        Shape (n, p).

    Returns
    -------
    Tensor
        Float64, of shape (n,).

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.selection import row_norms
    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 2.0]])).tolist()
    [5.0, 2.0]
    """
    norms: Tensor = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
    return norms


def robust_row_norms(x: Tensor) -> Tensor:
    """Return the l2 norm of each row, also where the squares of its numbers overflow or underflow.

    Parameters
    ----------
    x : Tensor
        Shape (n, p), float64; finite.

    Returns
    -------
    Tensor
        Float64, of shape (n,).

    Notes
    -----
    Squares of numbers above 1e154 overflow in float64, and those of numbers below 1e-154 underflow.
    Where a norm is near that, the rows are divided by powers of two first. Where checks are
    postponed, it is noted that none is too large.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.selection import robust_row_norms
    >>> robust_row_norms(
    ...     torch.tensor([[2.0**600, 0.0], [0.0, 2.0]], dtype=torch.float64)
    ... ).log2().tolist()
    [600.0, 1.0]
    """
    return robust_norms(x, lambda rows: row_norms(rows)[:, None])[:, 0]


def robust_norms(x: Tensor, norms_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return norms (n, k) of parts of rows x (n, p), which ``norms_of`` computes from squares, also
    where these overflow or underflow.
    """
    norms = norms_of(x)
    least_safe, most_safe = _SAFE_NORMS
    if is_postponed():  # no look at numbers now: the norms are checked later
        holds(norms < most_safe)
        return norms
    largest = norms.amax(1).tolist()
    if largest and least_safe < min(largest) and max(largest) < most_safe:
        return norms
    size = power_of_two(x.abs().amax(1, keepdim=True))
    return norms_of(x / size) * size


def unit_rows(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows scaled to l2 norm one, and their norms; a zero row becomes the first unit vector.

    Parameters
    ----------
    g : Tensor
        Shape (n, p); finite.

    Returns
    -------
    tuple of Tensor
        The rows, of shape (n, p), and the norms before scaling, of shape (n,), both in float64.

    Notes
    -----
    The result is the same to the bit when g is scaled by a power of two. Rows in float64 are
    divided by their largest entry first, which keeps the squares of huge or tiny numbers finite;
    float64 holds the squares of all others.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.selection import unit_rows
    >>> rows, norms = unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    >>> rows.round(decimals=6).tolist(), norms.tolist()
    ([[0.6, 0.8], [1.0, 0.0]], [5.0, 0.0])
    """
    if g.dtype is torch.float64:  # whose squares may overflow or underflow
        largest = g.abs().amax(1, keepdim=True)
        unit = g / largest.masked_fill(largest == 0, 1.0)
    else:
        largest = g.new_ones(1, 1, dtype=torch.float64)
        unit = g.double()
    norms = row_norms(unit)[:, None]
    zero = norms == 0
    unit[:, :1].masked_fill_(zero, 1.0)
    return unit.mul_(norms.masked_fill(zero, 1.0).reciprocal_()), (norms * largest)[:, 0]
