"""A deployment keeps the promise: clients rely on nobody for it, and never draw twice for one order."""

from __future__ import annotations

import json
import math
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw import Privacy
from fedfw.deployment import Client, DeployedServer, Deployment, Task
from fedfw.deployment.messages import Ask, Kind
from fedfw.deployment.store import ClientStore
from fedfw.errors import MessageError
from fedfw.privacy.accounting import Accountant
from fedfw.rounds.options import Options
from fedfw.rounds.wire import whole
from tests.deployment.loopback import OPEN, Loopback, problem_of, small_task

pytest.importorskip("dp_accounting")
DELTA = 1e-5


def test_a_deployment_keeps_the_promise_and_agrees_with_the_simulator(tmp_path: Path) -> None:
    promise = Privacy(4.0, DELTA, not_private_seed=1)
    for number, algorithm in enumerate(
        (fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01), fedfw.FedAvg(fedfw.L2Ball(5.0), lr=0.5))
    ):
        task = small_task(algorithm, rounds=4, privacy=promise)
        loop = Loopback(DeployedServer(task, Deployment(tell_loss=True)), tmp_path / str(number))
        loop.run(4)
        run = fedfw.simulate(problem_of(task), algorithm, rounds=4, privacy=promise)
        assert torch.allclose(loop.server.xbar, run.x, atol=1e-6)
        assert all(record.loss is None for record in loop.server.history)


def unequal_task(algorithm: fedfw.Algorithm, model: str, dtype: torch.dtype, **options: Any) -> Task:
    """Clients of 12, 9 and 30 samples."""

    def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(client)
        samples = (12, 9, 30)[client % 3]
        inputs = torch.randn(samples, 4, generator=generator) + client % 3
        return inputs.to(dtype), torch.randint(0, 3, (samples,), generator=generator)

    torch.manual_seed(0)
    made: torch.nn.Module = torch.nn.Linear(4, 3)
    if model == "network":
        made = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return Task(made.to(dtype), nnf.cross_entropy, algorithm, data, 3, options=Options(**options))


@pytest.mark.parametrize(
    ("model", "dtype"), [("layer", torch.float32), ("layer", torch.float64), ("network", torch.float32)]
)
@pytest.mark.parametrize(
    "algorithm",
    [
        fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01),
        fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01, momentum=0.9),
        fedfw.FedFWPlus(fedfw.LinfBall(5.0), penalty=0.01),
        fedfw.FedFWSto(fedfw.L2Ball(5.0), penalty=0.01),
        fedfw.FedAvg(fedfw.L2Ball(5.0), lr=0.5),
    ],
    ids=repr,
)
def test_private_minibatches_of_unequal_clients_have_the_simulators_bits(
    algorithm: fedfw.Algorithm, model: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """A client's draws depend on its own samples, not on those of the largest client in a stack."""
    promise = Privacy(1e6, DELTA, noise=0.1, not_private_seed=1)
    if algorithm.name == "fedfw":  # planned noise agrees, too, where both plan by the smallest client
        promise = Privacy(8.0, DELTA, not_private_seed=1, samples=9)
    options: dict[str, Any] = {"rounds": 4, "privacy": promise, "batch_size": 4, "local_steps": 2}
    task = unequal_task(algorithm, model, dtype, **options)
    loop = Loopback(DeployedServer(task), tmp_path)
    loop.run(4)
    run = fedfw.simulate(problem_of(task), algorithm, **options)
    assert torch.equal(loop.server.xbar, run.x.flatten())


def test_noise_for_minibatches_is_planned_by_the_smallest_client_that_is_named(tmp_path: Path) -> None:
    algorithm = fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01)
    noise = {}
    for samples in (None, 9, 30, 1000):
        promise = Privacy(8.0, DELTA, samples=samples)
        task = unequal_task(algorithm, "layer", torch.float32, rounds=4, privacy=promise, batch_size=4)
        plan = Client(task, 2, tmp_path)._privacy
        assert plan is not None
        noise[samples] = plan.noise
    assert noise[9] > noise[None] == noise[30] == noise[1000]  # never by more samples than the client has


def test_a_repeated_order_gets_the_stored_atom_never_a_fresh_draw(tmp_path: Path) -> None:
    task = small_task(fedfw.FedFW(fedfw.L2Ball(5.0), penalty=0.01), rounds=3, privacy=Privacy(1.0, DELTA))
    loop = Loopback(DeployedServer(task), tmp_path)
    order = loop.server.open({0, 1, 2})[1]
    answers = [loop.client(1).handle(order) for _ in range(3)]
    assert len({answer.payload for answer in answers}) == 1
    with pytest.raises(MessageError, match="asked for a contribution to a sum"):  # which is exact
        loop.client(0).handle(order.__class__(**(vars(order) | {"ask": Ask.SUM, "client": 0})))


def test_a_client_leaves_when_its_budget_is_spent(tmp_path: Path) -> None:
    task = small_task(fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01), rounds=30, privacy=Privacy(1.0, DELTA, noise=20.0))
    most = Accountant(DELTA, 1).most_releases(1.0, 20.0, 30)
    loop = Loopback(DeployedServer(task), tmp_path)
    loop.run(most)
    assert set(loop.server.roster.members) == {0, 1, 2}
    order = loop.server.open({0, 1, 2})[0]
    assert loop.client(0).handle(order).kind == Kind.LEAVING


def _order(loop: Loopback, **changes: Any) -> Any:
    order = loop.server.open({0, 1, 2})[0]
    return order.__class__(**(vars(order) | changes))


def test_two_processes_of_one_client_release_one_draw(tmp_path: Path) -> None:
    task = small_task(fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01), rounds=3, privacy=Privacy(1.0, DELTA))
    loop = Loopback(DeployedServer(task), tmp_path)
    order = _order(loop)
    answers: list[bytes] = []
    twins = [Thread(target=lambda: answers.append(loop.client(0).handle(order).payload)) for _ in range(2)]
    store = ClientStore(tmp_path, order.run, 0)
    with store.alone():
        for twin in twins:
            twin.start()
        twins[0].join(0.2)
        assert all(twin.is_alive() for twin in twins)  # both wait: somebody else is at work
    for twin in twins:
        twin.join()
    assert answers[0] == answers[1]
    assert [one.release for one in OPEN.ledger(0, tmp_path).releases()] == [1]
    log = store.path.with_suffix(".log.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["event"] for line in log) == ["repeated", "stepped"]


def test_a_client_does_not_trust_the_server_with_its_promise(tmp_path: Path) -> None:
    promise = Privacy(1.0, DELTA)
    task = small_task(fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01), rounds=3, privacy=promise)
    for weight in (-0.1, 0.0, 2.0, math.nan):
        with pytest.raises(MessageError, match="weight"):
            Loopback(DeployedServer(task), tmp_path / "weights").client(0).handle(
                _order(Loopback(DeployedServer(task), tmp_path), weight=weight)
            )
    far = {"x": whole(torch.full((15,), 1e30)).write()}
    loop = Loopback(DeployedServer(task), tmp_path / "points")
    order = _order(loop, memory=far)
    with pytest.raises(MessageError, match="outside"):
        loop.client(0).handle(order)
    # More rounds would mean less noise: the releases so far were planned otherwise.
    loop = Loopback(DeployedServer(task), tmp_path / "rounds")
    first = _order(loop)
    assert loop.client(0).handle(first).kind == Kind.STEP
    longer = small_task(task.algorithm, rounds=500, privacy=promise)
    later = first.__class__(**(vars(first) | {"t": 2, "counted": 1}))
    assert Client(longer, 0, tmp_path / "rounds", consent=OPEN).handle(later).kind == Kind.LEAVING
