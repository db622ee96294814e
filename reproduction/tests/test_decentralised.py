"""Decentralised Frank-Wolfe: its graphs, its steps written out, and Frank-Wolfe on the complete graph."""

import pytest
import torch
from tests.algorithms.test_baselines import DTYPES, WEIGHTS, typed, weighted

import fedfw
from fedfw_reproduction.decentralised import decentralised_frank_wolfe
from fedfw_reproduction.graphs import GRAPHS, edges_of, metropolis
from fedfw_reproduction.known_quadratics import SETS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_the_steps_are_those_that_are_written_out_here(
    graph: str, weights: str, dtype: torch.dtype
) -> None:
    q = weighted(weights, SETS["l2"])
    A, c, w = q.A.to(dtype), q.c.to(dtype), q.w.to(dtype)
    own = torch.eye(q.n, dtype=dtype)
    W = torch.full((q.n, q.n), 1 / q.n, dtype=dtype)
    if graph == "ring":  # a client and its two neighbours count alike
        W = (own + own.roll(1, 0) + own.roll(-1, 0)) / 3
    x = q.start.to(dtype).repeat(q.n, 1)
    tracked = torch.zeros_like(x)
    last = torch.zeros_like(x)
    for t in range(1, 13):
        x = W @ x
        slopes = q.n * w[:, None] * torch.einsum("nij,nj->ni", A, x - c)
        tracked = W @ (tracked + slopes - last)
        last = slopes
        atoms = -tracked / tracked.norm(dim=1, keepdim=True)  # of the ball of radius 1
        x = torch.lerp(x, atoms, 2 / (t + 1))
    end = decentralised_frank_wolfe(typed(q, dtype), q.constraint, graph=graph, rounds=12)
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4  # atoms are rounded to float32
    assert torch.allclose(end.x, x, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
def test_on_the_complete_graph_it_is_frank_wolfe(name: str, dtype: torch.dtype) -> None:
    q = weighted("unequal", SETS[name])
    central = fedfw.simulate(
        typed(q, dtype), fedfw.FrankWolfe(q.constraint, momentum=0.0), rounds=30, eval_every=30
    )
    end = decentralised_frank_wolfe(typed(q, dtype), q.constraint, graph="complete", rounds=30)
    assert torch.allclose(central.x, end.xbar, atol=1e-12 if dtype == torch.float64 else 1e-5)


# --- Graphs and weights of clients that have no server ---

CPU = torch.device("cpu")


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 16])
@pytest.mark.parametrize("graph", GRAPHS)
def test_graphs_are_connected_and_their_weights_keep_the_mean(graph: str, n: int) -> None:
    edges, W = edges_of(graph, n), metropolis(graph, n, torch.float64, CPU)
    assert torch.equal(edges, edges.T)
    assert not edges.diagonal().any()
    assert torch.equal(W, W.T)
    assert torch.allclose(W.sum(1), torch.ones(n, dtype=torch.float64), atol=1e-15)
    assert bool((W >= 0).all())
    assert torch.equal((W > 0) & ~torch.eye(n, dtype=torch.bool), edges)
    # Averaged often enough everybody has the mean, which is so where the graph is connected.
    assert torch.allclose(
        torch.linalg.matrix_power(W, 4000), torch.full((n, n), 1 / n).double(), atol=1e-9
    )


def test_a_grid_is_filled_row_by_row() -> None:
    """Three rows of three: four is in the middle, and two ends the first row."""
    grid = edges_of("grid", 9)
    assert grid[4].nonzero().flatten().tolist() == [1, 3, 5, 7]
    assert grid[2].nonzero().flatten().tolist() == [1, 5]


@pytest.mark.parametrize("graph", ["star", "grid:3", ""])
def test_other_names_are_refused(graph: str) -> None:
    with pytest.raises(ValueError, match=f"graph='{graph}', expected one of ring, complete, grid"):
        edges_of(graph, 4)
