"""What is behind most projections: clip(v - theta, 0, cap) with theta such that the sum is right."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def water_fill(v: Tensor, total: float, cap: float = math.inf) -> Tensor:
    """Project each row on ``{0 <= x <= cap, sum x = total}``: clip(v - theta, 0, cap) for the theta that fits.

    The sum is piecewise linear and falls in theta; its corners are the v_i and v_i - cap. Sorting them and
    adding up slopes finds the piece that holds the answer.

    Parameters
    ----------
    v
        (n, p), float64.
    total
        Between 0 and p * cap.

    Returns
    -------
    (n, p).
    """
    v = v - v.amax(1, keepdim=True)  # only differences count, and far from zero they would be lost to rounding
    if math.isinf(cap):
        corners = v.sort(1, descending=True).values
        slope = torch.arange(1, v.shape[1] + 1, dtype=v.dtype, device=v.device).expand_as(corners)
    else:
        both = torch.cat([v, v - cap], 1)
        step = torch.cat([torch.ones_like(v), -torch.ones_like(v)], 1)
        corners, order = both.sort(dim=1, descending=True)
        slope = step.gather(1, order).cumsum(1)
    # height[j]: the sum at theta = corners[j]; between corners it grows by slope * distance.
    rise = slope[:, :-1] * (corners[:, :-1] - corners[:, 1:])
    height = torch.cat([torch.zeros_like(corners[:, :1]), rise.cumsum(1)], 1)
    piece = ((height < total).sum(1, keepdim=True) - 1).clamp(min=0)
    missing = total - height.gather(1, piece)
    theta = corners.gather(1, piece) - missing / slope.gather(1, piece).clamp(min=1)
    return (v - theta).clamp(0, cap)


def shrink_magnitudes(a: Tensor, total: float, cap: float = math.inf) -> Tensor:
    """Project non-negative rows on ``{0 <= x <= cap, sum x <= total}``: (n, p) -> (n, p), float64."""
    clipped = a.clamp(0, cap)
    outside = clipped.sum(1, keepdim=True) > total
    if not outside.any():
        return clipped
    return torch.where(outside, water_fill(a, total, cap), clipped)
