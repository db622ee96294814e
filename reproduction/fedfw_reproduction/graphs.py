"""Graphs of clients that have no server, by name, and the weights with which neighbours are
averaged.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GRAPHS = ("ring", "complete", "grid")


def edges_of(graph: str, n: int) -> Tensor:
    """Return which nodes are neighbours, (n, n) of bool, symmetric and False on the diagonal.

    Parameters
    ----------
    graph : str
        ``ring``; ``complete``; or ``grid``, with ceil(sqrt(n)) columns, whose last row may be
        short.
    n : int
        How many nodes there are.

    Raises
    ------
    ValueError
        For other names.

    Examples
    --------
    >>> edges_of("ring", 5).sum(1).tolist(), edges_of("grid", 5).sum(1).tolist()
    ([2, 2, 2, 2, 2], [2, 3, 1, 2, 2])
    """
    if graph not in GRAPHS:
        raise ValueError(f"graph={graph!r}, expected one of {', '.join(GRAPHS)}")
    nodes = torch.arange(n)
    steps = nodes - nodes[:, None]  # from the row's node to the column's
    if graph == "complete":
        edges = steps > 0
    elif graph == "ring":
        edges = (steps == 1) | (steps == n - 1)
    else:
        columns = math.ceil(math.sqrt(n))
        begins_row = nodes % columns == 0  # and so has no neighbour on its left
        edges = (steps == columns) | ((steps == 1) & ~begins_row)
    return (edges | edges.T).fill_diagonal_(False)


def metropolis(graph: str, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the weights of Metropolis, (n, n): 1 / (1 + the larger degree) for neighbours, and the
    rest on the diagonal.

    They are symmetric and their rows add up to one, so that averaging with them leaves the mean of
    all nodes as it is.

    Examples
    --------
    >>> metropolis("complete", 4, torch.float64, torch.device("cpu"))[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    edges = edges_of(graph, n)
    degrees = edges.sum(1)
    weights = edges / (1.0 + torch.maximum(degrees, degrees[:, None]).double())
    return (weights + (1 - weights.sum(1)).diag()).to(device, dtype)
