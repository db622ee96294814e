"""Largest entries of each row, with ties always going to the lowest index."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 1024


def first_argmax(a: Tensor) -> Tensor:
    """Index of the first largest entry of each row: (n, p) -> (n,).

    On the CPU, torch's argmax is some thirty times slower than its amax, so long rows are cut into blocks: the first
    block that holds the maximum, then the first place inside it.
    """
    n, p = a.shape
    if p <= 4 * _BLOCK or a.is_cuda:
        return a.argmax(1)
    whole = p // _BLOCK * _BLOCK
    blocks = a[:, :whole].reshape(n, -1, _BLOCK)
    highest = blocks.amax(2)
    block = highest.argmax(1)
    rows = torch.arange(n, device=a.device)
    index = block * _BLOCK + blocks[rows, block].argmax(1)
    if whole < p:
        tail = a[:, whole:]
        place = tail.argmax(1)
        index = torch.where(tail[rows, place] > highest[rows, block], whole + place, index)
    return index


def first_top_k(a: Tensor, k: int) -> Tensor:
    """Indices of the k largest entries of each row, ascending: (n, p) -> (n, k)."""
    n, p = a.shape
    if k == 1:
        return first_argmax(a)[:, None]
    if k == p:
        return torch.arange(p, device=a.device).repeat(n, 1)
    smallest_kept = a.topk(k, dim=1).values[:, -1:]
    above = a > smallest_kept
    tied = a == smallest_kept
    room = k - above.sum(1, keepdim=True)
    kept = above | (tied & (tied.cumsum(1) <= room))
    if not a.is_cuda:
        return kept.nonzero()[:, 1].view(n, k)
    # Without asking how many there are, which the host would wait for: the j-th kept one goes to place j.
    places = torch.where(kept, kept.cumsum(1) - 1, k)
    columns = torch.arange(p, device=a.device).expand(n, p)
    return places.new_empty(n, k + 1).scatter_(1, places, columns)[:, :k]


def row_norms(x: Tensor) -> Tensor:
    """l2 norm of each row, added up in float64: (n, p) -> (n,)."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
    return norms


def unit_rows(g: Tensor) -> tuple[Tensor, Tensor]:
    """Rows scaled to l2 norm one and their norms, in float64: (n, p) -> (n, p), (n,).

    A zero row becomes the first unit vector.

    Dividing by the largest entry first keeps squares of huge or tiny numbers finite, and scaling g by a power of two
    gives the same bits.
    """
    unit = g.double()
    largest = unit.abs().amax(1, keepdim=True)
    unit = torch.where(largest > 0, unit / largest, 0.0)
    unit[:, 0] = torch.where(largest[:, 0] > 0, unit[:, 0], 1.0)
    norms = row_norms(unit)
    return unit / norms[:, None], norms * largest[:, 0]
