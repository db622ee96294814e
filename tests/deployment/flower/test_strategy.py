"""The Flower strategy against a grid in memory: whom it asks, what it refuses, when it waits."""

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
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
def _inside_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages can only be made where it runs an app."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


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
        self.replies: dict[str, Message] = {}

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node, public_key=self.keys.get(node, b"key %d" % node))
            for node in self.claims
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            names.append(f"message {len(self.asked)}")
            message.metadata.__dict__["_message_id"] = names[-1]
            self.asked.append((message.metadata.message_type, message.metadata.dst_node_id))
            reply = self._answer(message)
            if reply is not None:
                reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
                self.replies[names[-1]] = reply
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def _answer(self, message: Message) -> Message | None:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        if node in self.silent and kind == "train":
            return None
        if node in self.thieves and kind == "train":
            order = Order.of(content(message))
            self.stolen.append(order)
            return self._reply(message, Answer(order.run, order.t, order.client, "lost").fields())
        if node in self.broken:
            return Message(Error(0, "it fell over"), reply_to=message)
        if node in self.foreign and kind == "train":
            return Message(RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=message)
        if kind == "query":
            return self._reply(message, Hello(self.claims[node]).fields())
        client = Client(self.task, self.claims[node], self.folder)
        return self._reply(message, client.handle(Order.of(content(message))).fields())

    def _reply(self, message: Message, fields: dict[str, Any]) -> Message:
        return Message(RecordDict({RECORD: ConfigRecord(fields)}), reply_to=message)


def run(task: Any, grid: Grid, rounds: int) -> DeployedServer:
    server = DeployedServer(task, PATIENCE)
    FedFWStrategy(server).start(grid, ArrayRecord(), rounds)  # type: ignore[arg-type]
    return server


THREE = {11: 0, 22: 1, 33: 2}
"""Which node is which client."""


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(small_task(FEDFW, rounds=20), tmp_path, THREE)


def test_flower_messages_carry_the_same_run(grid: Grid) -> None:
    server = run(grid.task, grid, 4)
    assert torch.equal(server.xbar, fedfw.simulate(problem_of(grid.task), FEDFW, rounds=4).x)
    assert all(set(record.seconds or ()) == {"waiting", "server"} for record in server.history)
    assert sum(kind == "query" and node == 11 for kind, node in grid.asked) == 1  # met once


@pytest.mark.parametrize(
    ("changes", "participants", "refused"),
    [
        ({"claims": THREE | {44: 2}}, 3, {"impostor": 1}),
        ({"claims": THREE | {44: -1, 55: 2**62}}, 3, {"undecodable": 2}),  # no client has these
        ({"foreign": {33}}, 2, {"undecodable": 1}),  # its reply is nothing of ours
        ({"broken": {55}, "claims": THREE | {55: 5}}, 3, {"failed": 1}),
    ],
)
def test_strange_nodes_are_refused_and_the_round_goes_on(
    changes: dict[str, Any], participants: int, refused: dict[str, int], grid: Grid
) -> None:
    vars(grid).update(changes)
    first: Any = run(grid.task, grid, 1).history[0]
    assert (first.participants, first.refused) == (participants, refused)


def test_a_newcomer_joins_a_failure_is_an_absence_and_without_nodes_no_round_is_burnt(
    grid: Grid,
) -> None:
    grid.claims = THREE | {55: 5}
    server = DeployedServer(grid.task, PATIENCE)
    strategy = FedFWStrategy(server)
    strategy.start(grid, ArrayRecord(), 1)  # type: ignore[arg-type]
    assert server.roster.members == [0, 1, 2, 5]
    grid.broken = {22}
    strategy.start(grid, ArrayRecord(), 1)  # type: ignore[arg-type]
    last: Any = server.history[-1]
    assert (last.participants, last.refused) == (3, {"failed": 1})
    grid.claims = {}
    with pytest.raises(TimeoutError, match="resume=true"):
        strategy.start(grid, ArrayRecord(), 1)  # type: ignore[arg-type]
    assert server.t == 2


def go_on(server: DeployedServer, grid: Grid, rounds: int = 1) -> Any:
    FedFWStrategy(server).start(grid, ArrayRecord(), rounds)  # type: ignore[arg-type]
    return server.history[-1]


def test_a_thief_of_a_number_is_handed_nothing(tmp_path: Path) -> None:
    """A registered node claims the number of a client that restarts, and says that its memory is
    lost.
    """
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


def test_a_node_that_never_answers_is_asked_less_and_less(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid.claims, grid.silent = THREE | {44: 3}, {44}
    server = DeployedServer(grid.task, PATIENCE)
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
        strategy._meet_nodes(grid)  # type: ignore[arg-type]
        times += [second] if grid.asked else []
        grid.asked = []
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == [60, 120, 240]


class SlowFleet(Grid):
    """Nodes whose answers come one after another, by a clock that only moves when somebody sleeps;
    messages expire.
    """

    poll = 3.0
    each = 0.3

    def __init__(self, task: Any, folder: Path, claims: dict[int, int]) -> None:
        super().__init__(task, folder, claims)
        self.clock = 0.0
        self.free = 0.0
        self.mute: set[int] = set()
        self.waiting: dict[str, tuple[float, Message]] = {}
        self.expired = 0

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        names = list(super().push_messages(messages))
        for name, message in zip(names, messages, strict=True):
            self.free = max(self.free, self.clock + self.poll) + self.each
            reply = self.replies.pop(name)
            if message.metadata.dst_node_id in self.mute:
                continue
            if self.free > self.clock + message.metadata.ttl:
                self.expired += 1
            else:
                self.waiting[name] = (self.free, reply)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        there = [
            name
            for name in message_ids
            if name in self.waiting and self.waiting[name][0] <= self.clock
        ]
        return [self.waiting.pop(name)[1] for name in there]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As Flower has it."""
        left, end = set(self.push_messages(messages)), self.clock + (timeout or 0.0)
        found: list[Message] = []
        while timeout is None or self.clock < end:
            replies = list(self.pull_messages(left))
            found += replies
            left -= {reply.metadata.reply_to_message_id for reply in replies}
            if not left:
                break
            self.sleep(3.0)
        return found


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowFleet:
    """200 nodes behind a server that takes 0.3 s for each of them."""
    task = replace(small_task(FEDFW, rounds=20), clients=200, data=lambda client: None)
    grid = SlowFleet(task, tmp_path, {1000 + client: client for client in range(200)})
    monkeypatch.setattr(time, "monotonic", lambda: grid.clock)
    monkeypatch.setattr(time, "sleep", grid.sleep)
    return grid


def test_a_fleet_that_answers_slowly_is_asked_once(fleet: SlowFleet) -> None:
    strategy = FedFWStrategy(DeployedServer(fleet.task))
    strategy._wait(fleet, all_clients=True)  # type: ignore[arg-type]
    assert strategy._clients == fleet.claims
    assert len(fleet.asked) == 200
    assert fleet.expired == 0
    assert fleet.clock < 2 * (fleet.poll + 200 * fleet.each)


def met(fleet: SlowFleet, mute: set[int]) -> FedFWStrategy:
    """A strategy that has met the fleet but for the nodes that said nothing."""
    fleet.mute = mute
    strategy = FedFWStrategy(DeployedServer(fleet.task))
    strategy._meet_nodes(fleet)  # type: ignore[arg-type]
    return strategy


def answer_late(
    fleet: SlowFleet, strategy: FedFWStrategy, node: int, said: Any, source: int = 0
) -> None:
    """Let a node's question be answered now, by another node if it is named."""
    name = next(name for name, (asked, _) in strategy._questions.items() if asked == node)
    question = Message(RecordDict(), dst_node_id=node, message_type="query")
    question.metadata.__dict__["_message_id"] = name
    reply = Message(said, reply_to=question)
    reply.metadata.__dict__["_src_node_id"] = source or node
    fleet.waiting[name] = (fleet.clock, reply)
    strategy._meet_nodes(fleet)  # type: ignore[arg-type]


def hello(client: int) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord(Hello(client).fields())})


def test_silent_nodes_of_a_fleet_hold_it_up_once_and_late_answers_count(fleet: SlowFleet) -> None:
    strategy = met(fleet, {1000, 1001})
    assert len(strategy._clients) == 198
    assert fleet.clock < fleet.poll + 200 * fleet.each + 40  # until no answer has come for a while
    clock = fleet.clock
    for _ in range(3):
        strategy._meet_nodes(fleet)  # type: ignore[arg-type]
    assert fleet.clock == clock  # a question that is open already is not waited for
    answer_late(fleet, strategy, 1001, hello(1))
    assert strategy._clients[1001] == 1
    assert len(fleet.asked) == 200


def test_an_answer_in_the_place_of_another_node_is_refused(fleet: SlowFleet) -> None:
    strategy = met(fleet, {1000})
    answer_late(fleet, strategy, 1000, hello(0), source=1199)
    assert 0 not in strategy._clients.values()
    assert strategy._clients[1199] == 199


def test_a_question_that_nothing_answers_is_no_refusal(fleet: SlowFleet) -> None:
    """The SuperLink says in the node's place that there is no answer; the node is asked again
    later.
    """
    strategy = met(fleet, {1000})
    answer_late(fleet, strategy, 1000, Error(3, "it may have expired"))
    assert strategy._questions == {}
    assert not strategy.server._events.refused
    fleet.mute = set()
    fleet.clock += 60
    strategy._meet_nodes(fleet)  # type: ignore[arg-type]
    assert strategy._clients[1000] == 0
    assert len(fleet.asked) == 201


def test_waiting_times_follow_the_fleets_size(tmp_path: Path) -> None:
    task = replace(small_task(FEDFW, rounds=2), data=lambda client: None)
    seconds = {}
    for clients in (3, 100, 200, 1000):
        strategy = FedFWStrategy(DeployedServer(replace(task, clients=clients)))
        order = Order("r", 1, "step", 0, 1, 1.0, 0, 1, 0, b"")
        strategy._clients = {7: 0}
        [message] = strategy._messages({0: order})
        assert message.metadata.ttl == strategy.round_seconds + 60
        seconds[clients] = (strategy.round_seconds, strategy._start_seconds)
    assert seconds == {3: (120, 300), 100: (120, 300), 200: (220, 400), 1000: (1020, 1200)}
    given = DeployedServer(
        replace(task, clients=1000), Deployment(round_timeout=7.0, start_timeout=8.0)
    )
    assert FedFWStrategy(given).round_seconds == 7.0
    assert FedFWStrategy(given)._start_seconds == 8.0
