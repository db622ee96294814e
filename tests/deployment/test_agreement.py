"""The deployment's server and clients give the bits of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedfw
from fedfw.cpu.softmax import is_compiled
from fedfw.deployment import DeployedServer, Deployment, Task
from fedfw.deployment.messages import Order
from fedfw.rounds.options import Options
from fedfw.rounds.wire import decoded

from .loopback import Loopback, problem_of, small_task

L1, L2, NUCLEAR = fedfw.L1Ball(5.0), fedfw.L2Ball(5.0), fedfw.NuclearBall(5.0)
ALGORITHMS = {
    "FedFW": fedfw.FedFW(L1, penalty=0.01),
    "FedFW+": fedfw.FedFWPlus(NUCLEAR, penalty=0.01),
    "FedFW+ with momentum": fedfw.FedFWPlus(L2, penalty=0.01, momentum=0.9),
    "FedFW-sto": fedfw.FedFWSto(L2, penalty=0.01),
    "anchored": fedfw.FedFWAnchored(L1, penalty=0.01, anchor_every=3, momentum=0.5),
    "anchored, own points": fedfw.FedFWAnchored(L1, penalty=0.0, anchor_every=3, gradient_at="own"),
    "anchored, 3 numbers drawn": fedfw.FedFWAnchored(L1, penalty=0.01, compress="randk:3"),
    "anchored, the 3 largest": fedfw.FedFWAnchored(L1, penalty=0.01, anchor_every=2, compress="topk:3"),
    "anchored, 4 bits": fedfw.FedFWAnchored(NUCLEAR, penalty=0.01, momentum=0.5, compress="bits:4"),
    "product": fedfw.FedFW(fedfw.Product({"weight": L1, "*": L2}), penalty=0.01),
    "naive": fedfw.NaiveFW(L1),
    "FedLMO": fedfw.FedLMO(fedfw.Product({"weight": fedfw.SpectralBall(2.0), "*": L2})),
    "FedLMO, lazy": fedfw.FedLMO(L1, renew_every=3, momentum=0.5),
    "FedLMO, plain": fedfw.FedLMO(L2, correction=False),
    "FedLMO, momentum left open": fedfw.FedLMO(L2, momentum="auto"),
    "FedLMO, 4 bits": fedfw.FedLMO(fedfw.Product({"weight": fedfw.SpectralBall(2.0), "*": L2}), compress="bits:4"),
    "FedLMO, 8 bits on [W|b]": fedfw.FedLMO(fedfw.SpectralBall(2.0), compress="bits:8"),
    "FedLMO, lazy, 2 bits": fedfw.FedLMO(L1, renew_every=3, momentum=0.5, compress="bits:2"),
    "FedLMO at the server, 4 bits": fedfw.FedLMO(L2, oracle_at="server", compress="bits:4"),
    "FedLMO at the server": fedfw.FedLMO(L2, oracle_at="server"),
    "LocalMuon": fedfw.contrib.LocalMuon(fedfw.Product({"weight": fedfw.SpectralBall(2.0), "*": L2})),
    "FedMuon": fedfw.contrib.FedMuon(fedfw.Product({"weight": fedfw.SpectralBall(2.0), "*": L2})),
    "FedMuon on sparse atoms": fedfw.contrib.FedMuon(L1, momentum=0.0),
    "FedMuon with control variates": fedfw.contrib.FedMuonCV(L1),
    "FedAvg": fedfw.FedAvg(L1, lr=0.5),
    "FedAvg, decaying": fedfw.FedAvg(L1, lr=0.5, decay="linear"),
    "FedAvgM": fedfw.FedAvgM(L1, lr=0.5),
    "FedCM": fedfw.FedCM(L2, lr=0.5),
    "SCAFFOLD": fedfw.Scaffold(L1, lr=0.5, decay="linear"),
    "FedAdam": fedfw.FedAdam(L2, lr=0.5, decay="linear"),
    "FedAdamW": fedfw.FedAdamW(L1, lr=0.05),
    "FedDA": fedfw.FedDA(L1, lr=0.5),
    "Fast-FedDA": fedfw.contrib.FastFedDA(L1, lr=0.5, strong=0.2),
    "Frank-Wolfe": fedfw.FrankWolfe(L1, momentum=0.5),
    "Frank-Wolfe, an atom": fedfw.FrankWolfe(NUCLEAR, momentum=0.5, compress="atoms:1", compress_down="topk:5"),
    "FedAvg, top 3": fedfw.FedAvg(L1, lr=0.5, mu=0.1, compress="topk:3", compress_down="topk:4"),
    "FedAvg, signs": fedfw.FedAvg(L1, lr=0.5, compress="sign"),
    "FedPGD": fedfw.FedPGD(L1, lr=0.5),
    "FedPGD, top 3": fedfw.FedPGD(L1, lr=0.5, compress="topk:3"),
    "FedPGD, extrapolated, 4 drawn": fedfw.FedPGD(L2, lr=0.5, compress="randk:4", extrapolation="nesterov"),
    "FedPGD, rank 1": fedfw.FedPGD(NUCLEAR, lr=0.5, compress="rank:1", compress_down="topk:4"),
    "FedPGD, down": fedfw.FedPGD(L1, lr=0.5, extrapolation="nesterov", compress_down="topk:3"),
    "FedLMO, top 4": fedfw.FedLMO(L2, compress="topk:4"),
    "FedLMO at the server, top 3": fedfw.FedLMO(L2, oracle_at="server", compress="topk:3"),
    "FedLMO at the server, 5 drawn": fedfw.FedLMO(L1, oracle_at="server", compress="randk:5"),
    "FedFW, steps from curvature": fedfw.FedFW(L1, penalty=0.01, schedule="curvature"),
    "FedFW+, steps from curvature": fedfw.FedFWPlus(L2, penalty=0.01, momentum=0.9, schedule="curvature"),
    "anchored, steps from curvature": fedfw.FedFWAnchored(
        L1, anchor_every=3, gradient_at="own", penalty=0.0, schedule="curvature"
    ),
    "Frank-Wolfe, steps from curvature": fedfw.FrankWolfe(L2, momentum=0.5, schedule="curvature"),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The order of sums in a product of matrices depends on the threads and, with several, on the stack."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def enough_rounds(algorithm: fedfw.Algorithm) -> int:
    """The first round and two that begin with what the one before has left.

    Anchors and renewed control variates come again within five rounds, and a round follows them; those that the gap
    places come once.
    """
    return 5 if hasattr(algorithm, "anchor_every") or getattr(algorithm, "renew_every", 1) > 1 else 3


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    "options", [{}, {"participation": 2}, {"local_steps": 3}], ids=["plain", "two of three", "local"]
)
def test_same_bits_as_simulated(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Bits of the model, and bytes in all four counters, counted from what really went over the wire."""
    algorithm = ALGORITHMS[name]
    if algorithm.name in ("frank-wolfe", "fedpgd") and "local_steps" in options:
        return  # they take their steps at the server
    if name == "Frank-Wolfe, steps from curvature" and options:
        return  # it needs everybody's gradients
    options = options | {"rounds": enough_rounds(algorithm), "batch_size": 5 if name == "FedFW-sto" else None}
    task = small_task(algorithm, **options)
    loop = Loopback(DeployedServer(task, Deployment(share_gradients=True, tell_loss=True)), tmp_path)
    run = fedfw.simulate(problem_of(task), algorithm, **options)
    for simulated in run.history:
        record = loop.round()
        orders = [order for orders in loop.sent.values() for order in orders]
        down = sum(order.payload_nbytes for order in orders), sum(order.evidence_nbytes for order in orders)
        up = sum(len(answer.payload) for answer in loop.answered), sum(a.evidence_nbytes for a in loop.answered)
        loop.sent, loop.answered = {}, []
        assert (record.bytes_down, record.evidence_down) == down == (simulated.bytes_down, simulated.evidence_down)
        assert (record.bytes_up, record.evidence_up) == up == (simulated.bytes_up, simulated.evidence_up)
        assert record.accuracy == simulated.accuracy
        assert record.drift < 1e-6
    assert torch.equal(loop.server.xbar, run.x)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_same_bits_as_simulated_with_unequal_weights(name: str, tmp_path: Path) -> None:
    algorithm, rounds = ALGORITHMS[name], enough_rounds(ALGORITHMS[name])
    at_the_server = algorithm.name in ("frank-wolfe", "fedpgd")
    paced = getattr(algorithm, "schedule", None) == "curvature"
    options: dict[str, Any] = {
        "rounds": rounds,
        "eval_every": rounds,
        "participation": 1.0 if at_the_server and paced else 2,
        "local_steps": 1 if at_the_server else 2,
    }
    task = replace(small_task(algorithm, **options), weights=[0.1, 0.7, 1.3])  # whose sum is rounded
    loop = Loopback(DeployedServer(task, Deployment(share_gradients=True, tell_loss=True)), tmp_path)
    loop.run(rounds)
    run = fedfw.simulate(problem_of(task), algorithm, **options)
    equal = fedfw.simulate(problem_of(replace(task, weights=None)), algorithm, **options)
    assert torch.equal(loop.server.xbar, run.x)
    if algorithm.contract.weighted:  # else the same few atoms may come out
        assert not torch.allclose(equal.x, run.x, atol=1e-3)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: nn.Linear(4, 3),
    "perceptron": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    "GELU": lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 3)
    ),
}


def task_of_unequal_clients(
    model: str, algorithm: fedfw.Algorithm, dtype: torch.dtype, seed: int, **options: Any
) -> Task:
    """Four clients with 1 to 37 samples each."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 38, (5,), generator=generator).tolist()

    def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        own, size = torch.Generator().manual_seed(100 * seed + client), sizes[min(client, 4)]
        inputs = torch.randn(size, 4, generator=own, dtype=dtype) + client % 3
        return inputs, torch.randint(0, 3, (size,), generator=own)

    torch.manual_seed(seed)
    module = MODELS[model]().to(dtype)
    return Task(module, torch.nn.functional.cross_entropy, algorithm, data, 4, options=Options(**options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", MODELS)
def test_same_bits_for_clients_of_unequal_sizes(model: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Every kind of model, whether atoms are sent or dense vectors, which show every last bit of a gradient."""
    cases: list[tuple[fedfw.Algorithm, dict[str, Any]]] = [
        (fedfw.FedFW(L2, penalty=0.05), {}),
        (fedfw.FedFWAnchored(L1, penalty=0.01, anchor_every=2, momentum=0.5), {"participation": 2}),
        (fedfw.FedAvg(L2, lr=0.3), {"local_steps": 2}),
        (fedfw.Scaffold(L2, lr=0.3), {"participation": 3, "batch_size": 4}),
        (fedfw.FedLMO(L2), {"local_steps": 2}),
    ]
    for seed, (algorithm, options) in enumerate(cases):
        task = task_of_unequal_clients(model, algorithm, dtype, seed, rounds=3, eval_every=3, **options)
        loop = Loopback(DeployedServer(task, Deployment(share_gradients=True)), tmp_path / str(seed))
        loop.run(3)
        run = fedfw.simulate(problem_of(task), algorithm, rounds=3, eval_every=3, **options)
        assert torch.equal(loop.server.xbar, run.x.flatten()), algorithm


@pytest.mark.skipif(not is_compiled(), reason="the gradient of softmax regression was not compiled")
def test_softmax_regression_in_float32_has_the_bits_whoever_shares_a_call(tmp_path: Path) -> None:
    for seed, algorithm in enumerate((fedfw.FedFW(L2, penalty=0.05), fedfw.FedAvg(L2, lr=0.3))):
        task = task_of_unequal_clients("softmax", algorithm, torch.float32, seed, rounds=4, eval_every=4)
        loop = Loopback(DeployedServer(task, Deployment(share_gradients=True)), tmp_path / str(seed))
        loop.run(4)
        clients = [task.data(i) for i in range(4)]
        together = fedfw.Problem(task.model, task.loss, clients)
        assert not together.separate
        assert torch.equal(loop.server.xbar, fedfw.simulate(together, algorithm, rounds=4, eval_every=4).x)


@pytest.mark.parametrize("name", ["FedFW", "FedFW+"])
def test_same_bits_where_the_server_keeps_few_coordinates(name: str, tmp_path: Path) -> None:
    """The simulator adds up whole points; sums over 24 clients and few coordinates must not be rounded otherwise."""
    algorithm = {"FedFW": fedfw.FedFW, "FedFW+": fedfw.FedFWPlus}[name](L1, penalty=0.01)

    def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(client)
        return torch.randn(6, 201, generator=generator) + client % 3, torch.randint(0, 3, (6,), generator=generator)

    model = torch.nn.Linear(201, 3)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    options: dict[str, Any] = {"rounds": 5, "eval_every": 5, "participation": 0.7}
    task = Task(model, torch.nn.functional.cross_entropy, algorithm, data, 24, options=Options(**options))
    loop = Loopback(DeployedServer(task), tmp_path)
    run = fedfw.simulate(problem_of(task), algorithm, **options)
    for simulated in run.history:
        record = loop.round()
        assert (record.bytes_down, record.bytes_up) == (simulated.bytes_down, simulated.bytes_up)
    assert loop.server.coordinator.memory.columns is not None
    assert torch.equal(loop.server.xbar, run.x)
    for client, own in _own_memories(loop).items():
        known = loop.server.coordinator.memory.gather(torch.tensor([client]))
        assert all(torch.equal(known[key], own[key]) for key in known)


def test_the_server_rebuilds_every_memory_that_is_not_data(tmp_path: Path) -> None:
    task = small_task(ALGORITHMS["FedFW+"], rounds=6, participation=2)
    loop = Loopback(DeployedServer(task), tmp_path)
    loop.run(6)
    held = _own_memories(loop)
    for name, values in loop.server.coordinator.memory.rows.items():
        for row, client in enumerate(loop.server.roster.members):
            assert torch.equal(values[row], held[client][name][0])


def _own_memories(loop: Loopback) -> dict[int, dict[str, torch.Tensor]]:
    """What each client holds once it knows that its last step was counted."""
    from fedfw.deployment.store import ClientStore

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
    loop = Loopback(DeployedServer(task), tmp_path)
    for _ in range(6):
        before = loop.server.xbar
        loop.round()
        orders: list[Order] = [loop.sent[client][-1] for client in range(3)]
        known = loop.sent[0][-2] if len(loop.sent[0]) > 1 else None
        assert known is None or orders[0].counted == known.t
        assert len({order.vectors["xbar"] for order in orders}) == 1  # nothing that depends on who receives it
        if known is None:
            assert torch.equal(decoded(orders[0].vectors["xbar"], torch.zeros_like(task.start)), before)
    assert len(loop.sent[0][-1].vectors["xbar"]) < 1 + 4 * len(task.start)


def test_told_losses_and_bounds(tmp_path: Path) -> None:
    task = small_task(ALGORITHMS["FedFW+"], rounds=6)
    quiet, telling = (
        Loopback(DeployedServer(task, Deployment(tell_loss=tell)), tmp_path / str(tell)) for tell in (False, True)
    )
    quiet.run(6)
    telling.run(6)
    run = fedfw.simulate(problem_of(task), task.algorithm, rounds=6)
    assert torch.equal(quiet.server.xbar, telling.server.xbar)
    assert all(r.loss is None and r.lower_bound is None and r.gap is None for r in quiet.server.history)
    told = [r.loss for r in telling.server.history]
    assert told[:-1] == pytest.approx([r.loss for r in run.history][:-1])
    assert told[-1] is None
    optimum = fedfw.solve(problem_of(task), task.algorithm.constraint, tol=1e-3).value
    assert telling.server.coordinator.best_bound is not None
    assert telling.server.coordinator.best_bound <= optimum + 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["fedfw", "fedfw-anchored"])
def test_a_deployed_bound_has_weights_in_float64(method: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """(x - 30000)^2 on [-1, 1]: with weights of 1/3 in float32 the bound is 27 above the optimum."""
    model = torch.nn.Linear(1, 1, bias=False, dtype=dtype)
    torch.nn.init.zeros_(model.weight)
    sample = torch.ones(1, 1, dtype=dtype), torch.full((1, 1), 30000.0, dtype=dtype)
    algorithm = fedfw.ALGORITHMS[method]("l2:1", penalty=1.0)
    task = Task(model, torch.nn.functional.mse_loss, algorithm, lambda client: sample, 3, options=Options(rounds=12))
    loop = Loopback(DeployedServer(task, Deployment(tell_loss=True, share_gradients=True)), tmp_path)
    loop.run(12)
    bound, optimum = loop.server.coordinator.best_bound, 29999.0**2
    assert bound is not None
    assert optimum * (1 - 1e-6) <= bound <= optimum * (1 + 1e-14)


def test_losses_that_are_not_convex_prove_nothing(tmp_path: Path) -> None:
    task = replace(small_task(ALGORITHMS["FedFW"], rounds=3), convex=False)
    loop = Loopback(DeployedServer(task, Deployment(tell_loss=True)), tmp_path)
    loop.run(3)
    assert all(record.lower_bound is None for record in loop.server.history)


def test_numbers_need_consent_in_a_new_folder_even_if_it_is_to_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with pytest.raises(ValueError, match="give a number"):
        DeployedServer(small_task(fedfw.FedFW(L1)), Deployment(out=tmp_path / "server", resume=True))


def test_gradients_are_shared_only_when_asked_for() -> None:
    with pytest.raises(ValueError, match="gradients go to the server in the clear"):
        DeployedServer(small_task(ALGORITHMS["anchored"]))


@pytest.mark.parametrize("algorithm", [fedfw.FedFW(L1), fedfw.FedFWPlus(L2, momentum=0.9), fedfw.FedAvg(L1)])
def test_automatic_numbers_come_from_one_number_of_each_client(algorithm: fedfw.Algorithm, tmp_path: Path) -> None:
    """With clients' consent "auto" gives the simulator's number, and so its bits; without it is refused."""
    with pytest.raises(ValueError, match="give a number"):
        DeployedServer(small_task(algorithm))
    task = small_task(algorithm, rounds=4)
    settings = Deployment(tell_loss=True, out=tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path)
    loop.greet()
    loop.run(2)
    loop.server = DeployedServer(task, replace(settings, resume=True))  # a restarted server keeps the number
    loop.run(2)
    run = fedfw.simulate(problem_of(task), algorithm, rounds=4, eval_every=4)
    assert (loop.server.plan.lam_0, loop.server.plan.lr) == (run.plan.lam_0, run.plan.lr)
    assert torch.equal(loop.server.xbar, run.x)


def test_theory_needs_everybodys_gradients() -> None:
    with pytest.raises(ValueError, match="everybody's gradients"):
        small_task(fedfw.FedFW(L1, penalty="theory:3"))


def test_algorithms_whose_memory_cannot_be_restored_are_refused() -> None:
    for algorithm in (fedfw.FedDR(L1, lr=0.1), fedfw.contrib.FedADMM(L1, lr=0.1)):
        with pytest.raises(ValueError, match="simulations only"):
            small_task(algorithm)


def test_weights_of_clients() -> None:
    task = small_task(ALGORITHMS["FedFW"])
    weighted = Task(task.model, task.loss, task.algorithm, task.data, 2, weights=[1.0, 3.0])
    assert [weighted.weight(client, [0, 1]) for client in (0, 1)] == [0.25, 0.75]
    with pytest.raises(ValueError, match=r"weights=\[1.0\], expected 2 positive numbers"):
        Task(task.model, task.loss, task.algorithm, task.data, 2, weights=[1.0])
