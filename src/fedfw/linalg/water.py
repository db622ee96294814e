"""The computation behind most projections: clip(v - theta, 0, cap), with theta such that the sum is
a given number.
"""

import math

import torch
from torch import Tensor

from fedfw.linalg.selection import descending


def water_fill(v: Tensor, total: float, cap: float = math.inf) -> Tensor:
    """Project each row on ``{x : 0 <= x <= cap, sum x = total}``.

    Parameters
    ----------
    v : Tensor
        Shape (n, p), float64.
    total : float
        The sum of each projected row, between 0 and ``p * cap``.
    cap : float, default infinity
        The upper bound on every entry.

    Returns
    -------
    Tensor
        The projections, of shape (n, p).

    Notes
    -----
    The projection is ``clip(v - theta, 0, cap)`` for the number theta at which the sum is
    ``total``. As a function of theta this sum is decreasing and piecewise linear, with corners at
    v_i and v_i - cap. Sorting the corners and accumulating the slopes finds the piece that contains
    the solution, in O(p log p) operations.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.water import water_fill
    >>> v = torch.tensor([[0.5, 0.75, -1.0]], dtype=torch.float64)
    >>> water_fill(v, total=1.0).tolist()
    [[0.375, 0.625, 0.0]]
    """
    if math.isinf(cap):
        # Only differences matter, and rounding would lose them far from zero.
        v = v - v.amax(1, keepdim=True)
        corners = descending(v)
        slope = torch.arange(1, v.shape[1] + 1, dtype=v.dtype, device=v.device).expand_as(corners)
    else:
        v = _in_window(v, total, cap)
        # As theta falls, an entry begins to grow at v_i and stops at v_i - cap.
        unsorted = torch.cat([v, v - cap], 1)
        step = torch.cat([torch.ones_like(v), -torch.ones_like(v)], 1)
        corners, order = unsorted.sort(dim=1, descending=True)
        slope = step.gather(1, order).cumsum(1)
    # height[j]: the sum at theta = corners[j]; between corners it grows by slope * distance.
    rise = slope[:, :-1] * (corners[:, :-1] - corners[:, 1:])
    height = torch.cat([torch.zeros_like(corners[:, :1]), rise.cumsum(1)], 1)
    # The solution lies below the last corner at which the sum is less than ``total``.
    piece = ((height < total).sum(1, keepdim=True) - 1).clamp(min=0)
    missing = total - height.gather(1, piece)
    theta = corners.gather(1, piece) - missing / slope.gather(1, piece).clamp(min=1)
    return (v - theta).clamp(0, cap)


def _in_window(v: Tensor, total: float, cap: float) -> Tensor:
    """Return the entries of each row relative to one near the solution, clipped to where they
    matter: (n, p).

    The pivot is the entry whose rank is total / cap, rounded up. At the level theta = pivot the sum
    is at most ``total``, and at pivot - cap at least ``total``. So the solution lies between:
    entries from pivot + cap on are at their bound, and those below pivot - cap are zero. In that
    window differences are exact, however large the entries are; from the largest entry of a row
    they are not.
    """
    rank = math.ceil(min(max(total / cap, 1), v.shape[1]))
    return (v - descending(v)[:, rank - 1 : rank]).clamp_(-cap, cap)


def shrink_magnitudes(a: Tensor, total: float, cap: float = math.inf) -> Tensor:
    """Project each row on ``{x : 0 <= x <= cap, sum x <= total}``.

    Parameters
    ----------
    a : Tensor
        Shape (n, p), float64.
    total : float
        The largest sum of a row.
    cap : float, default infinity
        The upper bound on every entry.

    Returns
    -------
    Tensor
        The projections, of shape (n, p).

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.water import shrink_magnitudes
    >>> a = torch.tensor([[3.0, 2.0, 0.0], [0.5, 0.0, 0.25]], dtype=torch.float64)
    >>> shrink_magnitudes(a, total=2.0).tolist()
    [[1.5, 0.5, 0.0], [0.5, 0.0, 0.25]]
    """
    clipped = a.clamp(0, cap)
    outside = clipped.sum(1, keepdim=True) > total
    # A GPU would wait longer for the answer than sorting takes.
    if not a.is_cuda and not outside.any():
        return clipped
    return torch.where(outside, water_fill(a, total, cap), clipped)
