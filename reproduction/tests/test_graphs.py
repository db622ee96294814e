"""Graphs and weights of clients that have no server."""

import pytest
import torch

from fedfw_reproduction.graphs import edges_of, metropolis

GRAPHS = ["ring", "complete", "grid", "erdos:0.3", "erdos:1"]
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


def test_the_shapes_are_those_that_the_names_say() -> None:
    assert edges_of("complete", 6).sum() == 30
    assert edges_of("ring", 2).sum() == 2
    assert edges_of("grid", 9).sum() == 2 * 12
    assert edges_of("grid", 9)[4].nonzero().flatten().tolist() == [1, 3, 5, 7]
    assert edges_of("grid", 9)[2].nonzero().flatten().tolist() == [
        1,
        5,
    ]  # the next row begins with 3
    assert torch.equal(edges_of("erdos:1", 5), edges_of("complete", 5))
    share = edges_of("erdos:0.3", 60).double().mean()
    assert 0.2 < share < 0.4


def test_weights_of_metropolis_by_hand() -> None:
    """A grid of three: 0 - 1, and 2 below 0; the degrees are 2, 1, 1."""
    third = 1 / 3
    expected = torch.tensor(
        [[third, third, third], [third, 2 * third, 0], [third, 0, 2 * third]], dtype=torch.float64
    )
    assert torch.allclose(metropolis("grid", 3, torch.float64, CPU), expected)


@pytest.mark.parametrize(
    "graph", ["star", "erdos", "erdos:0", "erdos:1.5", "erdos:half", "grid:3", ""]
)
def test_other_names_are_refused(graph: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"graph='{graph}', expected one of ring, complete, grid, erdos:P with 0 < P",
    ):
        edges_of(graph, 4)


def test_a_graph_that_is_never_connected_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"graph='erdos:0\.001': none of 1000 random graphs of 40 nodes is connected",
    ):
        edges_of("erdos:0.001", 40)
