"""Measure what Flower adds to a message: bytes of the calls that carry one round's order and answer.

    python -m fedfw_reproduction.bench.transport

A server and three clients train softmax regression on the digits with the k-sparse set by FedFW.
Their orders and answers become Flower's messages, and these become the bodies of the calls that a
SuperNode makes: an order is pulled, with its objects, and confirmed; an answer is pushed, with its
objects. HTTP's headers and TLS come on top and are not counted, nor are calls that find no message.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedfw.deployment import Client, Consent, DeployedServer, Deployment
from fedfw.deployment.flower.strategy import RECORD, content
from fedfw.deployment.flower.template.federation.task import make_task
from fedfw.deployment.messages import Hello, Order
from fedfw_reproduction.bench.pages import markdown

SETTINGS = {"algorithm": "fedfw", "constraint": "ksparse:k=65,r=1", "penalty": 1e-3, "clients": 3}
ROUNDS = 5
NAME = 2**62 + 1
"""Runs, tasks and nodes have random names of 63 bits."""


def message_of(fields: Any, **kind: Any) -> Message:
    """Return an order or an answer as a message, with the name that the SuperLink gives it."""
    message = Message(RecordDict({RECORD: ConfigRecord(fields)}), **kind)
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def order_of(message: Message) -> Order:
    """Return the order that a message carries."""
    return Order.of(content(message))


def bytes_pulled(message: Message, node: Node) -> tuple[int, int]:
    """Return the bytes of a message with its objects, and of all calls by which a node receives
    it.
    """
    objects = get_all_nested_objects(message)
    header = message_to_proto(remove_content_from_message(message))
    tree = get_object_tree(message)
    name = message.metadata.message_id
    calls: list[Any] = [
        PullMessagesRequest(node=node),
        PullMessagesResponse(messages_list=[header], message_object_trees=[tree]),
        ConfirmMessageReceivedRequest(node=node, run_id=NAME, message_object_id=name),
        ConfirmMessageReceivedResponse(),
    ]
    alone = header.ByteSize()
    for name, one in objects.items():
        content = one.deflate()
        alone += len(content)
        answer = PullObjectResponse(
            object_found=True, object_available=True, object_content=content
        )
        calls += [PullObjectRequest(node=node, run_id=NAME, object_id=name), answer]
    return alone, sum(call.ByteSize() for call in calls)


def bytes_pushed(message: Message, node: Node) -> tuple[int, int]:
    """Return the bytes of a message with its objects, and of all calls by which a node sends it."""
    objects = get_all_nested_objects(message)
    header = message_to_proto(remove_content_from_message(message))
    request = PushMessagesRequest(
        node=node,
        messages_list=[header],
        message_object_trees=[get_object_tree(message)],
        clientapp_runtime_list=[0.1],
    )
    calls: list[Any] = [request, PushMessagesResponse(objects_to_push=list(objects))]
    alone = header.ByteSize()
    for name, one in objects.items():
        content = one.deflate()
        alone += len(content)
        pushed = PushObjectRequest(node=node, run_id=NAME, object_id=name, object_content=content)
        calls += [pushed, PushObjectResponse(stored=True)]
    return alone, sum(call.ByteSize() for call in calls)


def measure(folder: Path) -> list[tuple[str, ...]]:
    """Return the rows of the table: the means over the clients in the last round, down and up."""
    task = make_task(SETTINGS | {"rounds": ROUNDS})
    server = DeployedServer(task, Deployment())
    consent = Consent(sets=("all",), least_samples=1)
    node = Node(node_id=NAME)
    clients = [Client(task, number, folder, consent=consent) for number in range(task.clients)]
    for client in clients:
        server.meet(Hello.of(client.hello().fields()))
    for _ in range(ROUNDS):
        down, up = [], []
        for number, order in server.open(set(range(task.clients))).items():
            sent = message_of(order.fields(), dst_node_id=NAME, message_type="train")
            answer = clients[number].handle(order).fields()
            down.append(bytes_pulled(sent, node))
            up.append(bytes_pushed(message_of(answer, reply_to=sent), node))
            server.take(number, answer)
        record = server.close()
    counted = {"down": (record.bytes_down, record.evidence_down, down)}
    counted["up"] = (record.bytes_up, record.evidence_up, up)
    rows = []
    for way, (payload, checks, sizes) in counted.items():
        totals = (payload, checks, *map(sum, zip(*sizes, strict=True)))
        rows.append((way, *(f"{total / task.clients:.0f}" for total in totals)))
    return rows


def main() -> None:
    """Print the table."""
    for name in ("task_id", "run_id", "node_id"):
        setattr(TaskIdentity, name, NAME)  # messages can be made only where an app runs
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    header = ("a client's message", "payload", "checks", "message with its objects", "all calls")
    print("\n".join(markdown(header, found)))


if __name__ == "__main__":
    main()
