"""The deployment's server and clients give the bits of the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedfw
from fedfw.flower import Coordinator, Deployment, Task
from fedfw.flower.messages import Order
from fedfw.simulation.ledger import decode_down

from .loopback import Loopback, problem_of, small_task

L1, L2, NUCLEAR = fedfw.L1Ball(5.0), fedfw.L2Ball(5.0), fedfw.NuclearBall(5.0)
ALGORITHMS = {
    "FedFW": fedfw.FedFW(L1, penalty=0.01),
    "FedFW+": fedfw.FedFWPlus(NUCLEAR, penalty=0.01),
    "FedFW+ with momentum": fedfw.FedFWPlus(L2, penalty=0.01, momentum=0.9),
    "FedFW-sto": fedfw.FedFWSto(L2, penalty=0.01),
    "anchored": fedfw.FedFWAnchored(L1, anchor_every=3, momentum=0.5),
    "product": fedfw.FedFW(fedfw.Product({"weight": L1, "*": L2}), penalty=0.01),
    "naive": fedfw.NaiveFW(L1),
    "FedAvg": fedfw.FedAvg(L1, lr=0.5),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The order of sums in a product of matrices depends on the threads and, with several, on the stack."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    "options", [{}, {"participation": 2}, {"local_steps": 3}], ids=["plain", "two of three", "local"]
)
def test_same_bits_as_simulated(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    algorithm = ALGORITHMS[name]
    options = options | {"rounds": 8, "batch_size": 5 if name == "FedFW-sto" else None}
    task = small_task(algorithm, **options)
    loop = Loopback(Coordinator(task, Deployment(share_gradients=True)), tmp_path)
    loop.run(8)
    run = fedfw.simulate(problem_of(task), algorithm, **options)
    assert torch.equal(loop.server.server.xbar, run.x)
    history = loop.server.history
    assert [r.accuracy for r in history] == [r.accuracy for r in run.history]
    assert all(record.drift < 1e-6 for record in history)
    if algorithm.name != "fedfw-anchored":
        assert [r.bytes_up for r in history] == [r.bytes_up for r in run.history] or name == "FedAvg"


def test_the_server_rebuilds_every_memory_that_is_not_data(tmp_path: Path) -> None:
    task = small_task(ALGORITHMS["FedFW+"], rounds=6, participation=2)
    loop = Loopback(Coordinator(task), tmp_path)
    loop.run(6)
    held = _own_memories(loop)
    for name, values in loop.server.roster.memory.items():
        for row, client in enumerate(loop.server.roster.members):
            assert torch.equal(values[row], held[client][name][0])


def _own_memories(loop: Loopback) -> dict[int, dict[str, torch.Tensor]]:
    """What each client holds once it knows that its last step was counted."""
    from fedfw.flower.store import ClientStore

    held = {}
    for client in loop.server.roster.members:
        memory = ClientStore(loop.folder, loop.server.run, client).load()
        assert memory is not None
        step = (
            memory.pending
            if memory.pending and memory.pending.t == loop.server.roster.counted[client]
            else memory.counted
        )
        held[client] = step.state
    return held


def test_orders_tell_the_model_in_the_shortest_way_and_no_atom_of_another(tmp_path: Path) -> None:
    task = small_task(ALGORITHMS["FedFW"], rounds=6)
    loop = Loopback(Coordinator(task), tmp_path)
    for _ in range(6):
        before = loop.server.server.xbar
        loop.round()
        orders: list[Order] = [loop.sent[client][-1] for client in range(3)]
        known = loop.sent[0][-2] if len(loop.sent[0]) > 1 else None
        assert known is None or orders[0].counted == known.t
        assert len({order.model for order in orders}) == 1  # nothing that depends on who is told
        if known is None:
            assert torch.equal(decode_down(orders[0].model, task.start), before)
    assert len(loop.sent[0][-1].model) < 1 + 4 * len(task.start)


def test_told_losses_and_bounds(tmp_path: Path) -> None:
    task = small_task(ALGORITHMS["FedFW+"], rounds=12)
    quiet, telling = (
        Loopback(Coordinator(task, Deployment(tell=tell)), tmp_path / str(tell)) for tell in (False, True)
    )
    quiet.run(12)
    telling.run(12)
    run = fedfw.simulate(problem_of(task), task.algorithm, rounds=12)
    assert torch.equal(quiet.server.server.xbar, telling.server.server.xbar)
    assert all(r.loss is None and r.lower_bound is None and r.gap is None for r in quiet.server.history)
    told = [r.loss for r in telling.server.history]
    assert told[:-1] == pytest.approx([r.loss for r in run.history][:-1])
    assert told[-1] is None
    optimum = fedfw.solve(problem_of(task), task.algorithm.constraint, tol=1e-3).value
    assert telling.server.best_bound is not None
    assert telling.server.best_bound <= optimum + 1e-9


def test_gradients_are_shared_only_when_asked_for() -> None:
    with pytest.raises(ValueError, match="gradients go to the server in the clear"):
        Coordinator(small_task(ALGORITHMS["anchored"]))


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (fedfw.FedFW(L1, penalty="auto"), "give a number"),
        (fedfw.FedAvg(L1), "give a number"),
    ],
)
def test_automatic_choices_are_refused(algorithm: fedfw.Algorithm, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Coordinator(small_task(algorithm))


def test_algorithms_whose_memory_cannot_be_restored_are_refused() -> None:
    for algorithm in (fedfw.FedDR(L1, lr=0.1), fedfw.FrankWolfe(L1)):
        with pytest.raises(ValueError, match="simulations only"):
            small_task(algorithm)


def test_weights_of_clients() -> None:
    task = small_task(ALGORITHMS["FedFW"])
    weighted = Task(task.model, task.loss, task.algorithm, task.data, 2, weights=[1.0, 3.0])
    assert [weighted.weight(client, [0, 1]) for client in (0, 1)] == [0.25, 0.75]
    with pytest.raises(ValueError, match="1 weights for 2 clients"):
        Task(task.model, task.loss, task.algorithm, task.data, 2, weights=[1.0])
