"""Who talks to whom where there is no server: graphs by name, and the weights with which neighbours
are averaged.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from fedfw.randomness import generator

NAMES = ("ring", "complete", "grid", "erdos:P")
EXPECTED = f"one of {', '.join(NAMES)} with 0 < P <= 1"
_DRAWS = 1000
"""How many random graphs are drawn in search of one that is connected."""


@lru_cache(maxsize=64)
def edges_of(graph: str, n: int) -> Tensor:
    """Who is whose neighbour, (n, n) of bool, symmetric, nobody of himself; the tensor must not be
    changed.

    Parameters
    ----------
    graph : str
        ``ring``; ``complete``; ``grid``, with ceil(sqrt(n)) columns, whose last row may be short;
        or ``erdos:P``, where each pair are neighbours with probability P: the first connected one
        of the graphs that fixed seeds draw, so that the name says which graph it is.
    n : int
        How many nodes there are.

    Raises
    ------
    ValueError
        For other names, and where no random graph is connected.

    Examples
    --------
    >>> edges_of("ring", 5).sum(1).tolist(), edges_of("grid", 5).sum(1).tolist()
    ([2, 2, 2, 2, 2], [2, 3, 1, 2, 2])
    """
    name, _, given = graph.partition(":")
    nodes = torch.arange(n)
    if name == "erdos" and 0 < (probability := _number(given)) <= 1:
        for draw in range(_DRAWS):
            uniform = torch.rand(n, n, generator=generator(draw, "graph", n), dtype=torch.float64)
            edges = _both_ways((uniform < probability).triu(1))
            if _connected(edges):
                return edges
        raise ValueError(
            f"graph={graph!r}: none of {_DRAWS} random graphs of {n} nodes is connected; give a larger P"
        )
    if given or name not in ("ring", "complete", "grid"):
        raise ValueError(f"graph={graph!r}, expected {EXPECTED}")
    if name == "complete":
        return _both_ways(torch.ones(n, n, dtype=torch.bool).triu(1))
    if name == "ring":
        return _both_ways((nodes[:, None] + 1) % n == nodes).fill_diagonal_(False)
    columns = math.ceil(math.sqrt(n))
    step, inside = (
        nodes - nodes[:, None],
        nodes % columns > 0,
    )  # the first column has nobody on its left
    return _both_ways((step == columns) | ((step == 1) & inside))


@lru_cache(maxsize=64)
def metropolis(graph: str, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The weights of Metropolis, (n, n): 1 / (1 + the larger degree) for neighbours, and the rest
    for oneself.

    They are symmetric and their rows add up to one, so that averaging with them leaves the mean of
    all nodes as it is. The tensor must not be changed.

    Examples
    --------
    >>> metropolis("complete", 4, torch.float64, torch.device("cpu"))[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    edges = edges_of(graph, n)
    degrees = edges.sum(1)
    weights = edges / (1.0 + torch.maximum(degrees, degrees[:, None]).double())
    return (weights + (1 - weights.sum(1)).diag()).to(device, dtype)


def _both_ways(edges: Tensor) -> Tensor:
    return edges | edges.T


def _number(text: str) -> float:
    """The number that a text stands for; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _connected(edges: Tensor) -> bool:
    """Whether everybody can be reached from the first node."""
    reached = torch.zeros(len(edges), dtype=torch.bool)
    reached[0] = True
    while not torch.equal(reached, more := reached | edges[reached].any(0)):
        reached = more
    return bool(reached.all())
