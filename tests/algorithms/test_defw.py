"""Decentralised Frank-Wolfe: its steps written out, Frank-Wolfe on the complete graph, what is counted and refused."""

from __future__ import annotations

import pytest
import torch

import fedfw
from fedfw.algorithms.base import Server
from fedfw.deployment import Task
from fedfw.rounds.memory import EveryRow
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import SETS, P, Quadratics

from .test_baselines import DTYPES, WEIGHTS, digits_and_their_optimum, residual, typed, weighted

GRAPHS = ["ring", "complete", "grid", "erdos:0.3"]


def neighbours(graph: str, n: int) -> list[set[int]]:
    """The ring and the complete graph, by hand."""
    if graph == "complete":
        return [set(range(n)) - {i} for i in range(n)]
    return [{(i - 1) % n, (i + 1) % n} for i in range(n)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_the_steps_are_those_that_are_written_out_here(graph: str, weights: str, dtype: torch.dtype) -> None:
    q, rounds = weighted(weights, SETS["l2"]), 12
    A, c, w, n = q.A.to(dtype), q.c.to(dtype), q.w.to(dtype), q.n
    around = neighbours(graph, n)

    def average(vectors: list[torch.Tensor]) -> list[torch.Tensor]:
        means = []
        for i in range(n):
            shares = {j: 1 / (1 + max(len(around[i]), len(around[j]))) for j in around[i]}
            own = (1 - sum(shares.values())) * vectors[i]
            means.append(own + sum(share * vectors[j] for j, share in shares.items()))
        return means

    x = [q.start.to(dtype) for _ in range(n)]
    tracked, last = ([torch.zeros(P, dtype=dtype) for _ in range(n)] for _ in range(2))
    for t in range(1, rounds + 1):
        x = average(x)
        slopes = [n * w[i] * A[i] @ (x[i] - c[i]) for i in range(n)]
        tracked = average([tracked[i] + slopes[i] - last[i] for i in range(n)])
        last, eta = slopes, 2 / (t + 1)
        x = [(1 - eta) * x[i] - eta * tracked[i] / tracked[i].norm() for i in range(n)]  # the ball of radius 1
    rough = 1e-6 if dtype == torch.float64 else 1e-4  # atoms are rounded to float32
    seen: list[torch.Tensor] = []
    run = fedfw.simulate(
        typed(q, dtype),
        fedfw.DeFW(q.constraint, graph=graph),
        rounds=rounds,
        eval_every=rounds,
        callbacks=lambda simulation: seen.append(simulation.clients["x"]),
    )
    assert torch.allclose(seen[-1], torch.stack(x), atol=rough)
    assert torch.allclose(run.x, torch.stack(x).mean(0), atol=rough)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
def test_on_the_complete_graph_it_is_frank_wolfe(name: str, dtype: torch.dtype) -> None:
    q = weighted("unequal", SETS[name])
    central, decentral = (
        fedfw.simulate(typed(q, dtype), algorithm, rounds=30, eval_every=30)
        for algorithm in (fedfw.FrankWolfe(q.constraint), fedfw.DeFW(q.constraint, graph="complete"))
    )
    assert torch.allclose(central.x, decentral.x, atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", SETS)
def test_converges_on_every_graph_and_all_clients_agree(name: str, graph: str) -> None:
    q = weighted("unequal", SETS[name])

    tracked: list[torch.Tensor] = []

    def watch(simulation: Simulation) -> None:
        state = simulation.clients
        tracked.append(torch.stack([state["d"], state["last"]]))

    run = fedfw.simulate(q.problem, fedfw.DeFW(q.constraint, graph=graph), rounds=400, eval_every=400, callbacks=watch)
    assert len(tracked) == 400
    means = torch.stack(tracked).mean(2)
    # What is tracked is the mean of everybody's latest gradients, whatever the graph.
    assert torch.allclose(means[:, 0], means[:, 1], atol=1e-10)
    assert residual(q, run.x) < 1e-3
    assert q.constraint.contains(run.x)
    consensus = run.history[-1].consensus
    assert consensus is not None
    assert consensus < 0.05
    assert run.lower_bound is not None
    assert run.lower_bound <= q.least + 1e-9


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_minimiser_at_a_corner_is_a_fixed_point(graph: str) -> None:
    """Where everybody is at the corner that the gradient of F points to, nobody moves, though clients differ."""
    plain = Quadratics.on("l1")
    q = Quadratics(fedfw.Box(-0.01, 0.01), plain.A, plain.c)
    x, slopes = q.optimum, q.n * q.gradients(q.optimum)
    assert torch.allclose(x.abs(), torch.full_like(x, 0.01))
    rest = {"x": x.repeat(q.n, 1), "d": slopes.mean(0).repeat(q.n, 1), "last": slopes}
    simulation = Simulation(q.problem, fedfw.DeFW(q.constraint, graph=graph), Options(rounds=5, eval_every=5))
    simulation.coordinator.memory, simulation.coordinator.server = EveryRow(rest), Server(x)
    assert torch.allclose(simulation.run().x, x, atol=1e-9)
    for key, value in rest.items():
        assert torch.allclose(simulation.clients[key], value, atol=1e-9), key


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("graph", "messages"), [("ring", 16), ("complete", 56), ("grid", 20)])
def test_two_vectors_are_counted_for_each_neighbour(graph: str, messages: int, dtype: torch.dtype) -> None:
    q = Quadratics.on("l2")
    record = fedfw.simulate(typed(q, dtype), fedfw.DeFW(q.constraint, graph=graph), rounds=2).history[-1]
    assert record.bytes_up == 2 * messages * (1 + P * dtype.itemsize)
    assert record.bytes_down == 0


def test_what_needs_a_server_is_refused() -> None:
    q = Quadratics.on("l2")
    algorithm = fedfw.DeFW(q.constraint)
    with pytest.raises(ValueError, match=r"participation=0\.5: defw has no server, .* expected 1\.0"):
        fedfw.simulate(q.problem, algorithm, rounds=2, participation=0.5)
    with pytest.raises(ValueError, match="local_steps=2: defw takes one step a round, expected 1"):
        fedfw.simulate(q.problem, algorithm, rounds=2, local_steps=2)
    with pytest.raises(ValueError, match="relax does not go with defw"):
        fedfw.simulate(q.problem, algorithm, rounds=2, relax={0: fedfw.L2Ball(5.0)})
    with pytest.raises(ValueError, match="defw runs in simulations only: its clients talk to their neighbours"):
        Task(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss, algorithm, lambda i: None, 3)


def test_on_the_digits_the_complete_graph_is_central_and_the_ring_not_far_behind() -> None:
    problem, D, optimum = digits_and_their_optimum()
    start = problem.value(problem.start)

    def left(algorithm: fedfw.Algorithm) -> float:
        loss = fedfw.simulate(problem, algorithm, rounds=100, eval_every=100).history[-1].loss
        assert loss is not None
        return (loss - optimum.value) / (start - optimum.value)

    central, complete, ring = (
        left(algorithm) for algorithm in (fedfw.FrankWolfe(D), fedfw.DeFW(D, graph="complete"), fedfw.DeFW(D))
    )
    assert complete == pytest.approx(central, abs=1e-3)
    assert central <= ring < 2 * central
