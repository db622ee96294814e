"""Flower's grid in one process: real ServerApps and ClientApps, and messages as bytes between them."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import fedfw

QUICKSTART = Path(__file__).parents[2] / "examples" / "flower_quickstart"


@contextmanager
def imported(folder: Path) -> Iterator[None]:
    """Make an app's package importable, as Flower does for a run."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
            del sys.modules[name]


def _carried(record: RecordDict) -> RecordDict:
    """Return a content as it arrives: from its bytes."""
    objects: dict[str, Any] = {}
    for name, one in get_all_nested_objects(record).items():
        children = {child.object_id: objects[child.object_id] for child in _children(one)}
        objects[name] = type(one).inflate(one.deflate(), children)
    found: RecordDict = objects[record.object_id]
    return found


def _children(one: Any) -> list[Any]:
    return list((one.children or {}).values())


@dataclass
class Grid:
    """Nodes that run a ClientApp; ``state`` of each is what Flower keeps of it.

    Parameters
    ----------
    app : ClientApp
        What every node runs.
    nodes : dict of int to dict
        The configuration of each node, by its id.
    change : callable
        (node, reply) -> what of a reply arrives.
    """

    app: ClientApp
    nodes: dict[int, dict[str, Any]]
    change: Callable[[int, Message], list[Message]] = lambda node, reply: [reply]
    states: dict[int, RecordDict] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    run_config: dict[str, Any] = field(default_factory=dict)

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return [reply for message in messages for reply in self._ask(message)]

    def _ask(self, message: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        self.sent.append(message)
        received = Message(
            _carried(message.content), dst_node_id=node, message_type=message.metadata.message_type
        )
        received.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"
        state = self.states.get(node, RecordDict())
        context = Context(1, node, self.nodes[node], state, self.run_config)
        try:
            reply = self.app(received, context)
        except Exception as error:  # as a SuperNode does it
            answer = Message(Error(0, repr(error)), reply_to=received)
        else:
            self.states[node] = _carried(context.state)
            answer = Message(_carried(reply.content), reply_to=received)
        answer.metadata.__dict__["_src_node_id"] = node
        return self.change(node, answer)


def make_grid(app: ClientApp, count: int) -> Grid:
    """Return a grid with nodes whose ids run against their partitions."""
    nodes = {}
    for k in range(count):
        nodes[100 - k] = {"partition-id": k, "num-partitions": count}
    return Grid(app, nodes)


def simulated(
    start: torch.nn.Module, clients: list[Any], algorithm: fedfw.Algorithm, rounds: int, **more: Any
) -> fedfw.Run:
    """Return the same run of `fedfw.simulate`."""
    loss = torch.nn.CrossEntropyLoss()
    problem = fedfw.Problem(start, loss, clients, separate=True)
    return fedfw.simulate(problem, algorithm, rounds=rounds, **more)
