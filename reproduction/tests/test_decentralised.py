"""Decentralised Frank-Wolfe: its steps written out, Frank-Wolfe on the complete graph, convergence,
fixed points.
"""

import pytest
import torch
from tests.algorithms.test_baselines import DTYPES, WEIGHTS, typed, weighted

import fedfw
from fedfw_reproduction.decentralised import bytes_per_round, decentralised_frank_wolfe
from fedfw_reproduction.known_quadratics import SETS, P


def neighbours(graph: str, n: int) -> list[set[int]]:
    """The ring and the complete graph, by hand."""
    if graph == "complete":
        return [set(range(n)) - {i} for i in range(n)]
    return [{(i - 1) % n, (i + 1) % n} for i in range(n)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_the_steps_are_those_that_are_written_out_here(
    graph: str, weights: str, dtype: torch.dtype
) -> None:
    q = weighted(weights, SETS["l2"])
    rounds = 12
    n = q.n
    A, c, w = q.A.to(dtype), q.c.to(dtype), q.w.to(dtype)
    around = neighbours(graph, n)

    def average(vectors: list[torch.Tensor]) -> list[torch.Tensor]:
        means = []
        for i in range(n):
            shares = {j: 1 / (1 + max(len(around[i]), len(around[j]))) for j in around[i]}
            own = (1 - sum(shares.values())) * vectors[i]
            means.append(own + sum(share * vectors[j] for j, share in shares.items()))
        return means

    x = [q.start.to(dtype) for _ in range(n)]
    tracked = [torch.zeros(P, dtype=dtype) for _ in range(n)]
    last = [torch.zeros(P, dtype=dtype) for _ in range(n)]
    for t in range(1, rounds + 1):
        x = average(x)
        slopes = [n * w[i] * A[i] @ (x[i] - c[i]) for i in range(n)]
        tracked = average([tracked[i] + slopes[i] - last[i] for i in range(n)])
        last = slopes
        eta = 2 / (t + 1)
        x = [
            (1 - eta) * x[i] - eta * tracked[i] / tracked[i].norm() for i in range(n)
        ]  # the ball of radius 1
    end = decentralised_frank_wolfe(typed(q, dtype), q.constraint, graph=graph, rounds=rounds)
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4  # atoms are rounded to float32
    assert torch.allclose(end.x, torch.stack(x), atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
def test_on_the_complete_graph_it_is_frank_wolfe(name: str, dtype: torch.dtype) -> None:
    q = weighted("unequal", SETS[name])
    central = fedfw.simulate(
        typed(q, dtype), fedfw.FrankWolfe(q.constraint), rounds=30, eval_every=30
    )
    end = decentralised_frank_wolfe(typed(q, dtype), q.constraint, graph="complete", rounds=30)
    assert torch.allclose(central.x, end.xbar, atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("graph", "messages"), [("ring", 16), ("complete", 56), ("grid", 20)])
def test_two_vectors_are_counted_for_each_neighbour(
    graph: str, messages: int, dtype: torch.dtype
) -> None:
    assert bytes_per_round(graph, 8, P, dtype) == 2 * messages * (1 + P * dtype.itemsize)
