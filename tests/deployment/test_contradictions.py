"""A deployed training that refutes its lower bound goes on without one, and says so at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw import ContradictionError
from fedfw.deployment import DeployedServer, Deployment, Task
from fedfw.rounds.options import Options

from .loopback import Loopback, small_task

pytestmark = [
    pytest.mark.usefixtures("no_plots"),
    pytest.mark.filterwarnings("ignore:the model's parameters lie outside"),
]
FLOATS = [torch.float32, torch.float64]
ROUNDS = 12
Loss = Callable[[Tensor, Tensor], Tensor]


def waves(outputs: Tensor, targets: Tensor) -> Tensor:
    """Not convex."""
    return (torch.cos(outputs) + 2).mean()


def mirrored(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets of -1 and 1 make waves that cancel: only their mean is convex."""
    return (3 * targets * torch.cos(2 * outputs) + outputs.square()).mean()


def task_of(loss: Loss, algorithm: Any, dtype: torch.dtype, **more: Any) -> Task:
    """Three clients, or as many as are given, with one parameter."""
    model = torch.nn.Linear(1, 1, bias=False, dtype=dtype)
    torch.nn.init.constant_(model.weight, 0.4)

    def data(client: int) -> tuple[Tensor, Tensor]:
        sign = 1.0 if client % 2 else -1.0
        return torch.ones(2, 1, dtype=dtype), torch.full((2, 1), sign, dtype=dtype)

    options = {"clients": 3, "options": Options(rounds=ROUNDS), "convex": True} | more
    return Task(model, loss, algorithm, data, **options)


def server_of(task: Task, **settings: Any) -> DeployedServer:
    return DeployedServer(task, Deployment(tell_loss=True, share_gradients=True, **settings))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("method", ["fedfw", "fedfw+", "fedfw-anchored"])
def test_no_bound_is_reported_that_losses_refute(
    method: str,
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    task = task_of(waves, fedfw.ALGORITHMS[method]("linf:4", penalty=0.01), dtype)
    loop = Loopback(server_of(task, out=tmp_path / "server"), tmp_path)
    loop.run(ROUNDS)
    server = loop.server
    assert len(server.history) == ROUNDS  # numbers of clients do not end a training
    assert server.coordinator.best_bound is None
    assert all(record.lower_bound is None for record in server.history)
    assert sum(server.refuted in record.notes for record in server.history) == 1
    assert "convex" in server.refuted
    with pytest.raises(ContradictionError, match=r"^round \d+: "):
        server.finish()
    folder = tmp_path / "server"
    assert (folder / "model.pt").exists()  # the model is as good as it was
    lines = (folder / "history.jsonl").read_text().splitlines()
    assert all(json.loads(line)["lower_bound"] is None for line in lines)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_loss_below_the_bound_names_the_round_and_both_numbers(
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    """Without numbers of clients there is the floor: here it is none."""

    def below_zero(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - 1).square().mean() - 0.5

    task = task_of(below_zero, fedfw.FedAvg("l2:4", lr=0.1), dtype)
    loop = Loopback(server_of(task), tmp_path)
    loop.server.coordinator.floor = loop.server.coordinator.best_bound = 0.0
    loop.run(ROUNDS)
    assert "is below 0, which" in loop.server.refuted
    assert "the loss F = -0." in loop.server.refuted
    assert "floor" in loop.server.refuted


@pytest.mark.parametrize("dtype", FLOATS)
def test_clients_see_for_themselves_that_their_losses_are_not_convex(
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    task = task_of(mirrored, fedfw.FedFW("linf:2", penalty=0.01), dtype, clients=2)
    loop = Loopback(server_of(task), tmp_path)
    loop.run(ROUNDS)
    assert "the losses of clients [" in loop.server.refuted
    refused = [answer for answer in loop.answered if answer.convex is False]
    assert refused
    assert all(answer.number is None and answer.payload for answer in refused)
    logs = "".join(path.read_text() for path in tmp_path.rglob("*.log.jsonl"))
    assert "without a certificate, because round" in logs
    assert "the value of one of its own tangents" in logs


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_client_says_nothing_that_it_was_not_asked_for(
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    task = task_of(mirrored, fedfw.FedFW("linf:2", penalty=0.01), dtype, clients=2)
    quiet = Loopback(DeployedServer(task), tmp_path)
    quiet.run(ROUNDS)
    assert all(answer.convex is None for answer in quiet.answered)
    assert quiet.server.refuted == ""

    def lies(client: int, fields: dict[str, Any]) -> list[dict[str, Any]]:
        return [fields | {"convex": False, "loss": -1e17}]

    unasked = Loopback(
        DeployedServer(small_task(fedfw.FedFW("l1:5", penalty=0.01))),
        tmp_path,
        lies,
    )
    unasked.run(2)
    assert unasked.server.refuted == ""


def test_a_client_that_lies_takes_the_bound_away_and_no_more(tmp_path: Path) -> None:
    task = small_task(fedfw.FedFW("l1:5", penalty=0.01), rounds=6)

    def lies(client: int, fields: dict[str, Any]) -> list[dict[str, Any]]:
        return [fields | {"loss": -1e17} if client == 1 and "loss" in fields else fields]

    honest = Loopback(server_of(task), tmp_path / "honest")
    lying = Loopback(server_of(task), tmp_path / "lying", lies)
    honest.run(6)
    lying.run(6)
    assert torch.equal(honest.server.xbar, lying.server.xbar)
    assert honest.server.refuted == ""
    assert honest.server.coordinator.best_bound is not None
    assert lying.server.refuted
    assert lying.server.coordinator.best_bound is None


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_restarted_server_keeps_what_it_saw(dtype: torch.dtype, tmp_path: Path) -> None:
    task = task_of(waves, fedfw.FedFW("linf:4", penalty=0.01), dtype)
    straight = Loopback(server_of(task), tmp_path / "straight")
    straight.run(ROUNDS)
    settings: dict[str, Any] = {"out": tmp_path / "server"}
    loop = Loopback(server_of(task, **settings), tmp_path)
    for _ in range(ROUNDS):  # it is killed after every round
        loop.round()
        before = loop.server
        loop.server = server_of(task, **settings, resume=True)
        assert loop.server.refuted == before.refuted
        assert loop.server._losses.state() == before._losses.state()
        assert loop.server.coordinator.best_bound == before.coordinator.best_bound
    assert loop.server.refuted == straight.server.refuted != ""
    with pytest.raises(ContradictionError):
        loop.server.finish()


def test_folders_of_earlier_versions_can_be_resumed(tmp_path: Path) -> None:
    """They say nothing of losses: these are then missing, and the run goes on."""
    task = small_task(fedfw.FedFW("l1:5", penalty=0.01), rounds=6)
    loop = Loopback(server_of(task, out=tmp_path / "server"), tmp_path)
    loop.run(3)
    loop.server._load_proof({})
    assert loop.server.refuted == ""
    loop.run(3)
    assert loop.server.coordinator.best_bound is not None


def test_losses_of_other_clients_are_another_sum(tmp_path: Path) -> None:
    """When a client has left, what was proven and what was seen of the last sum is void."""
    task = small_task(fedfw.FedFW("l1:5", penalty=0.01), rounds=8)
    loop = Loopback(server_of(task), tmp_path)
    loop.run(3)
    assert loop.server._losses.state()
    loop.leaving.add(1)
    loop.round()
    assert not loop.server._losses.state()
    loop.run(3)
    assert loop.server.refuted == ""
    assert loop.server.coordinator.best_bound is not None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("method", ["fedfw", "fedfw+", "fedfw-anchored"])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_rounding_is_no_contradiction(
    offset: float,
    method: str,
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    def squared(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets - offset).square().mean()

    box = fedfw.Box(torch.tensor([offset - 1]), torch.tensor([offset + 1]))
    task = task_of(squared, fedfw.ALGORITHMS[method](box, penalty=0.01), dtype)
    loop = Loopback(server_of(replace(task, options=Options(rounds=10))), tmp_path)
    loop.run(10)
    assert loop.server.refuted == ""
    assert loop.server.coordinator.best_bound is not None
