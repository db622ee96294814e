"""A hostile server that tries to remove a client's noise by rounding: what it asks for is refused, or tells nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import scipy.stats
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw import Privacy
from fedfw.algorithms.base import Message
from fedfw.deployment import Client, DeployedServer, Task
from fedfw.deployment.messages import Kind, Order
from fedfw.errors import MessageError
from fedfw.rounds.options import Options
from fedfw.rounds.wire import digest, whole

pytest.importorskip("dp_accounting")
SAMPLES, FEATURES, DELTA = 200, 30, 1e-5


def task_with(k: int, algorithm: fedfw.Algorithm) -> Task:
    """k samples have a gradient in one coordinate, the others none: the attacker wants to know k."""
    x, y = torch.zeros(SAMPLES, FEATURES), torch.arange(SAMPLES) % 2
    x[:k, 0], y[:k] = 1000.0, 0
    model = torch.nn.Linear(FEATURES, 2)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    options = Options(rounds=10, privacy=Privacy(1.0, DELTA))
    return Task(model, nnf.cross_entropy, algorithm, lambda client: (x, y), 3, options=options)


def order_of(task: Task, large: float | None = None, **changes: object) -> Order:
    """The first order of a server, with duals of its choosing handed over, which cancel."""
    order = replace(DeployedServer(task).open({0, 1, 2})[0], **changes)  # type: ignore[arg-type]
    if large is None:
        return order
    y, xbar = torch.full((len(task.start),), large, dtype=torch.float64), task.start.double()
    vectors = {"xbar": whole(xbar).write(), "ybar": whole(y).write()}
    memory = {"x": whole(xbar).write(), "y": whole(y).write()}
    return replace(order, vectors=vectors, memory=memory, digest=digest(xbar, y), base=0)


def chosen(task: Task, order: Order, folder: Path) -> bool:
    """Whether the client's atom is at the coordinate in question."""
    client = Client(task, 0, folder)
    answer = client.handle(order)
    assert answer.kind == Kind.STEP
    plan = task.plan(task.resolved(), 3)
    point = task.decode(answer.payload, plan, Message(1, task.start)).dense()
    return bool(point[0] != 0 or point[FEATURES] != 0)


PLUS = fedfw.FedFWPlus(fedfw.L1Ball(1.0), penalty=1e-3)


@pytest.mark.parametrize("weight", [2.0**-149, 1e-300, 2.0**-31])
def test_tiny_weights_are_refused(weight: float, tmp_path: Path) -> None:
    task = task_with(100, PLUS)
    with pytest.raises(MessageError, match="a weight outside of"):
        Client(task, 0, tmp_path).handle(order_of(task, weight=weight))


@pytest.mark.parametrize("large", [2.0**40, -(2.0**60), 1e300])
def test_duals_beside_which_noise_is_lost_are_refused(large: float, tmp_path: Path) -> None:
    task = task_with(100, PLUS)
    with pytest.raises(MessageError, match="noise would be lost in rounding"):
        Client(task, 0, tmp_path).handle(order_of(task, large))


def test_duals_that_cancel_do_not_tell_one_sample(tmp_path: Path) -> None:
    """With y = ybar = 1.5 * 2^21 a float32 client told apart 150 of 150, against an epsilon of 0.156."""
    trials, hits = 40, []
    for k in (76, 75):
        task = task_with(k, PLUS)
        order = order_of(task, 1.5 * 2.0**21)
        hits.append(sum(chosen(task, order, tmp_path / f"{k}-{i}") for i in range(trials)))
    seen = scipy.stats.fisher_exact([[hits[0], trials - hits[0]], [hits[1], trials - hits[1]]])
    assert seen.pvalue > 1e-4, hits
