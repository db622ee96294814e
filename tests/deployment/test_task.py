"""What a task refuses before anybody trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.deployment import Client, DeployedServer, Deployment, Task
from fedfw.rounds.options import Options
from tests.deployment.loopback import OPEN, Loopback

PRIVATE = "eps=1,delta=1e-5"


def data(client: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(client)
    return torch.randn(8, 4, generator=generator), torch.arange(8) % 3


def task(model: nn.Module | None = None, loss: Any = nnf.cross_entropy, per: Any = "sample", **options: Any) -> Task:
    algorithm = fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1)
    return Task(model or nn.Linear(4, 3), loss, algorithm, data, 2, options=Options(rounds=2, **options), per=per)


def together(outputs: Tensor, targets: Tensor) -> Tensor:
    return nnf.cross_entropy(outputs - outputs.mean(0), targets)


def test_a_loss_of_whole_clients_has_no_minibatches_and_no_privacy() -> None:
    assert task(loss=together, per="client").problem(data(0)).losses.per == "client"
    with pytest.raises(ValueError, match="batch_size=3, expected none"):
        task(loss=together, per="client", batch_size=3)
    with pytest.raises(ValueError, match='privacy does not go with per="client"'):
        task(loss=together, per="client", privacy=PRIVATE)


def test_what_only_the_data_show_is_refused_at_the_client() -> None:
    mixing = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="batch_size=3, expected none"):
        task(mixing, batch_size=3).problem(data(0))
    with pytest.raises(ValueError, match='privacy does not go with per="client"'):
        task(mixing, privacy=PRIVATE).problem(data(0))
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="privacy does not go with class weights"):
        task(loss=weighted, privacy=PRIVATE).problem(data(0))
    assert task(loss=weighted, batch_size=3).problem(data(0)).losses.weighs


@pytest.mark.parametrize(
    ("loss", "convex"),
    [(nn.CrossEntropyLoss(), True), (nn.CrossEntropyLoss(label_smoothing=0.1), True), (together, None)],
)
def test_convexity_is_that_of_the_problem(loss: Any, convex: bool | None) -> None:
    made = task(loss=loss, per="client" if loss is together else "sample")
    assert made.setting().convex is convex
    assert made.problem(data(0)).convex is convex


@pytest.mark.parametrize(("clients", "message"), [(0, "at least 1"), (10**6 + 1, "at most 1000000 in a deployment")])
def test_the_number_of_clients_has_bounds(clients: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"clients={clients}, expected {message}"):
        replace(task(), clients=clients)


class _Stubborn(torch.nn.Module):
    """A linear model that works in float32 only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3, 4))
        self.scale = [torch.eye(4)]  # not a buffer, so it stays as it is

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.scale[0] @ self.weight.T


def test_clients_that_cannot_prove_anything_say_nothing(tmp_path: Path) -> None:
    """float64 is what proofs are made in: numbers are then left out, and anchors, which prove, are refused."""

    def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(client)
        return torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator)

    ball = fedfw.L1Ball(2.0)
    task = Task(
        _Stubborn(), nnf.cross_entropy, fedfw.FedFW(ball, penalty=0.1), data, 3, options=Options(rounds=2), convex=True
    )
    loop = Loopback(DeployedServer(task, Deployment(tell_loss=True)), tmp_path / "plain")
    loop.run(2)
    assert [record.participants for record in loop.server.history] == [3, 3]
    assert loop.server.coordinator.best_bound == 0.0  # what the loss itself allows
    anchored = replace(task, algorithm=fedfw.FedFWAnchored(ball, penalty=0.0))
    server = DeployedServer(anchored, Deployment(share_gradients=True))
    order = server.ask_for_sums({0, 1, 2})[0]
    with pytest.raises(ValueError, match="cannot be worked out in float64"):
        Client(anchored, 0, tmp_path / "anchored", consent=OPEN).handle(order)


@pytest.mark.parametrize("weights", [[0.0, 1.0], [-1.0, 2.0], [float("nan"), 1.0], [1.0]])
def test_weights_are_positive_numbers_one_a_client(weights: list[float]) -> None:
    """A round in which only a client of weight 0 answers would have no mean."""
    with pytest.raises(ValueError, match=r"weights=.*, expected 2 positive numbers"):
        replace(task(), weights=weights)
