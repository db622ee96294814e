"""DeFW: decentralised Frank-Wolfe. There is no server: clients average with their neighbours on a
graph.

    x'_i = sum_j W_ij x_j                                                    the neighbours' points
    d_i <- sum_j W_ij (d_j + grad h_j(x'_j) - grad h_j(x'_j of last round))  tracks the gradient of F
    x_i <- (1 - eta_t) x'_i + eta_t argmin over s in D of <d_i, s>

W has the weights of Metropolis (`fedfw_reproduction.graphs`), which keep the means: the mean of the
d_i is that of the latest grad h_i(x'_i), with h_i = n w_i f_i, and xbar is the mean of the x_i. d_i
and the last gradient begin at zero. On the complete graph W_ij = 1/n and every client takes the
steps of Frank-Wolfe itself.

The rows of a round depend on each other, so the library's contract, in which a client sees the
server's message and its own data only, does not fit: this module has a loop of its own. The paper
may average several times a round; here it is once.

Reference: Wai, Lafond, Scaglione and Moulines, "Decentralized Frank-Wolfe algorithm for convex and
nonconvex problems" (2017), arXiv 1612.01216.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfw import Problem
from fedfw.sets import ConstraintSet
from fedfw_reproduction.graphs import metropolis


@dataclass(frozen=True)
class Clients:
    """The clients after a round: their points x, directions d and last gradients, (n, p) each."""

    x: Tensor
    d: Tensor
    last: Tensor

    @property
    def xbar(self) -> Tensor:
        """The mean of the points, (p,), which no client has."""
        return self.x.mean(0)


def decentralised_frank_wolfe(
    problem: Problem,
    constraint: ConstraintSet,
    *,
    graph: str = "ring",
    rounds: int,
    step: Callable[[int], float] = lambda t: 2 / (t + 1),
) -> Clients:
    """Run DeFW from the projection of the problem's start, with zero directions, and return its
    clients.

    Parameters
    ----------
    problem : Problem
        Of n clients.
    constraint : ConstraintSet
        The set D.
    graph : str
        Which clients are neighbours; see `fedfw_reproduction.graphs.edges_of`.
    rounds : int
        How many rounds.
    step : callable
        t -> eta_t.

    Examples
    --------
    >>> import fedfw
    >>> end = decentralised_frank_wolfe(fedfw.testing.two_quadratics(), fedfw.Box(-1.0, 1.0), rounds=10)
    >>> float(end.xbar)
    1.0
    """
    D = problem.bind(constraint)
    x = D.project(problem.start).repeat(problem.n, 1)
    clients = Clients(x, torch.zeros_like(x), torch.zeros_like(x))
    W = metropolis(graph, problem.n, x.dtype, x.device)
    all_rows = torch.arange(problem.n)
    scales = (problem.n * problem.weights)[:, None].to(clients.x)
    for t in range(1, rounds + 1):
        x = W @ clients.x
        _, gradients = problem.losses.value_and_gradient(x, all_rows, None)
        last = scales * gradients
        d = W @ (clients.d + last - clients.last)
        clients = Clients(D.lmo(d, batch=True).step(x, step(t)), d, last)
    return clients
