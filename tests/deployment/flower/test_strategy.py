"""The Flower strategy against a grid in memory: whom it asks, what it refuses, when it waits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedfw
from fedfw.deployment import Client, DeployedServer, Deployment
from fedfw.deployment.messages import Answer, Hello, Order
from tests.deployment.loopback import problem_of, small_task

flwr = pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict  # noqa: E402
from flwr.proto.node_pb2 import NodeInfo  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from fedfw.deployment.flower.strategy import RECORD, FedFWStrategy, content  # noqa: E402

PATIENCE = Deployment(round_timeout=5.0, start_timeout=1.0)
FEDFW = fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01)


@pytest.fixture(autouse=True)
def _inside_flower(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flower's messages can only be made where it runs an app."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Grid:
    """Nodes that answer at once; ``claims`` says which client each of them is."""

    def __init__(self, task: Any, folder: Path, claims: dict[int, int]) -> None:
        self.task, self.folder, self.claims = task, folder, claims
        self.keys: dict[int, bytes] = {}
        self.broken: set[int] = set()
        self.silent: set[int] = set()
        self.thieves: set[int] = set()
        self.stolen: list[Order] = []
        self.foreign: set[int] = set()
        self.asked: list[tuple[str, int]] = []

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"key %d" % node)) for node in self.claims]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            self.asked.append((kind, node))
            if node in self.silent and kind == "train":
                continue
            if node in self.thieves and kind == "train":
                order = Order.of(content(message))
                self.stolen.append(order)
                reply = self._reply(message, Answer(order.run, order.t, order.client, "lost").fields())
            elif node in self.broken:
                reply = Message(Error(0, "it fell over"), reply_to=message)
            elif node in self.foreign and kind == "train":
                reply = Message(RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=message)
            elif kind == "query":
                reply = self._reply(message, Hello(self.claims[node]).fields())
            else:
                client = Client(self.task, self.claims[node], self.folder)
                reply = self._reply(message, client.handle(Order.of(content(message))).fields())
            reply.metadata.__dict__["_src_node_id"] = node
            yield reply

    def _reply(self, message: Message, fields: dict[str, Any]) -> Message:
        return Message(RecordDict({RECORD: ConfigRecord(fields)}), reply_to=message)


def run(task: Any, grid: Grid, rounds: int) -> DeployedServer:
    server = DeployedServer(task, PATIENCE)
    FedFWStrategy(server).start(grid, ArrayRecord(), rounds)  # type: ignore[arg-type]
    return server


def test_flower_messages_carry_the_same_run(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=4)
    server = run(task, Grid(task, tmp_path, {11: 0, 22: 1, 33: 2}), 4)
    assert torch.equal(server.xbar, fedfw.simulate(problem_of(task), FEDFW, rounds=4).x)
    assert all(record.seconds and set(record.seconds) == {"waiting", "server"} for record in server.history)


def test_nodes_are_met_once_and_impostors_refused(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=3)
    grid = Grid(task, tmp_path, {11: 0, 22: 1, 33: 2, 44: 2})
    server = run(task, grid, 3)
    assert [r.participants for r in server.history] == [3, 3, 3]
    first: Any = server.history[0]
    assert set(first.refused) == {"impostor"}
    assert sum(kind == "query" and node == 11 for kind, node in grid.asked) == 1


def test_a_newcomer_joins_and_a_failure_is_an_absence(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=3)
    grid = Grid(task, tmp_path, {11: 0, 22: 1, 33: 2, 55: 5})
    server = DeployedServer(task, PATIENCE)
    strategy = FedFWStrategy(server)
    strategy.start(grid, ArrayRecord(), 1)  # type: ignore[arg-type]
    assert server.roster.members == [0, 1, 2, 5]
    grid.broken = {22}
    strategy.start(grid, ArrayRecord(), 1)  # type: ignore[arg-type]
    last: Any = server.history[-1]
    assert (last.participants, last.refused) == (3, {"failed": 1})


def test_a_reply_that_is_nothing_of_ours_is_refused(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=2)
    grid = Grid(task, tmp_path, {11: 0, 22: 1, 33: 2})
    grid.foreign = {33}
    last: Any = run(task, grid, 2).history[-1]
    assert (last.participants, last.refused) == (2, {"undecodable": 1})


def test_numbers_that_no_client_has_are_refused(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=1)
    last: Any = run(task, Grid(task, tmp_path, {11: 0, 22: 1, 33: 2, 44: -1, 55: 2**62}), 1).history[-1]
    assert (last.participants, last.refused) == (3, {"undecodable": 2})


def test_without_anybody_no_round_is_burnt(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=3)
    grid = Grid(task, tmp_path, {11: 0, 22: 1, 33: 2})
    server = DeployedServer(task, PATIENCE)
    strategy = FedFWStrategy(server)
    strategy.start(grid, ArrayRecord(), 1)  # type: ignore[arg-type]
    grid.claims = {}
    with pytest.raises(TimeoutError, match="resume=true"):
        strategy.start(grid, ArrayRecord(), 1)  # type: ignore[arg-type]
    assert server.t == 1


def test_without_anybody_it_says_so(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=3)
    with pytest.raises(TimeoutError, match="no client came"):
        run(task, Grid(task, tmp_path, {}), 1)


def test_foreign_records_are_undecodable() -> None:
    message = SimpleNamespace(content=RecordDict({"x": ConfigRecord({"a": 1})}))
    with pytest.raises(fedfw.errors.MessageError, match="undecodable"):
        content(message)  # type: ignore[arg-type]


def go_on(server: DeployedServer, grid: Grid, rounds: int = 1) -> Any:
    FedFWStrategy(server).start(grid, ArrayRecord(), rounds)  # type: ignore[arg-type]
    return server.history[-1]


def test_a_thief_of_a_number_is_handed_nothing(tmp_path: Path) -> None:
    """A registered node claims the number of a client that restarts, and says that its memory is lost."""
    task = small_task(fedfw.FedFWPlus(fedfw.L1Ball(5.0), penalty=0.01), rounds=20)
    settings = replace(PATIENCE, out=tmp_path / "server", leave_after=0)
    grid = Grid(task, tmp_path / "clients", {11: 0, 22: 1, 33: 2})
    server = DeployedServer(task, settings)
    go_on(server, grid, 3)
    grid.thieves = {66}
    grid.claims = {66: 0, 22: 1, 33: 2}
    for _ in range(2):  # by a strategy that is new each time, and by a server that is, too
        last = go_on(server, grid)
        assert (last.participants, last.refused) == (2, {"impostor": 1})
        server = DeployedServer(task, replace(settings, resume=True))
    assert grid.stolen == []
    grid.claims = {66: 0, 99: 0, 22: 1, 33: 2}
    grid.keys = {99: b"key 11"}  # the owner's key, whatever the node is called now
    last = go_on(server, grid)
    assert (last.participants, last.refused) == (3, {"impostor": 1})
    assert grid.stolen == []


def test_a_node_that_never_answers_is_asked_less_and_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = small_task(FEDFW, rounds=20)
    grid = Grid(task, tmp_path, {11: 0, 22: 1, 33: 2, 44: 3})
    grid.silent = {44}
    server = DeployedServer(task, PATIENCE)
    strategy = FedFWStrategy(server)
    strategy.start(grid, ArrayRecord(), 8)  # type: ignore[arg-type]
    records: list[Any] = list(server.history)
    assert [record.invited for record in records] == [4, 4, 4, 3, 3, 3, 3, 3]
    assert records[2].left == [3]
    clock, grid.broken, grid.asked = time.monotonic(), {44}, []
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    times = []
    for second in range(500):
        clock += 1.0
        strategy._meet(grid)  # type: ignore[arg-type]
        times += [second] if grid.asked else []
        grid.asked = []
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == [60, 120, 240]
