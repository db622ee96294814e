"""What Flower adds to a message: bytes of the calls that carry one round's order and answer.

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
from fedfw.deployment.flower.strategy import RECORD
from fedfw.deployment.flower.template.federation.task import make_task
from fedfw.deployment.messages import Answer, Hello
from fedfw_reproduction.bench.pages import markdown

SETTINGS = {"algorithm": "fedfw", "constraint": "ksparse:k=65,r=1", "penalty": 1e-3, "clients": 3}
ROUNDS = 5
NAME = 2**62 + 1
"""Runs, tasks and nodes have random names of 63 bits."""


def order_message(fields: Any) -> Message:
    """Return an order as the SuperLink stores it."""
    content = RecordDict({RECORD: ConfigRecord(fields)})
    return named(Message(content, dst_node_id=NAME, message_type="train"))


def named(message: Message) -> Message:
    """Return the message with the name that the SuperLink gives it."""
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def pulled(message: Message, node: Node) -> int:
    """Return the bytes of all calls by which a node receives a message."""
    objects, tree = get_all_nested_objects(message), get_object_tree(message)
    header = message_to_proto(remove_content_from_message(message))
    calls: list[Any] = [
        PullMessagesRequest(node=node),
        PullMessagesResponse(messages_list=[header], message_object_trees=[tree]),
        ConfirmMessageReceivedRequest(
            node=node, run_id=NAME, message_object_id=message.metadata.message_id
        ),
        ConfirmMessageReceivedResponse(),
    ]
    for name, one in objects.items():
        calls.append(PullObjectRequest(node=node, run_id=NAME, object_id=name))
        answer = PullObjectResponse(
            object_found=True, object_available=True, object_content=one.deflate()
        )
        calls.append(answer)
    return sum(call.ByteSize() for call in calls)


def pushed(message: Message, node: Node) -> int:
    """Return the bytes of all calls by which a node sends a message."""
    objects, tree = get_all_nested_objects(message), get_object_tree(message)
    header = message_to_proto(remove_content_from_message(message))
    calls: list[Any] = [
        PushMessagesRequest(
            node=node,
            messages_list=[header],
            message_object_trees=[tree],
            clientapp_runtime_list=[0.1],
        ),
        PushMessagesResponse(objects_to_push=list(objects)),
    ]
    for name, one in objects.items():
        request = PushObjectRequest(
            node=node, run_id=NAME, object_id=name, object_content=one.deflate()
        )
        calls += [request, PushObjectResponse(stored=True)]
    return sum(call.ByteSize() for call in calls)


def measure(folder: Path) -> list[tuple[str, int, int, int, int]]:
    """Return payload, checks, the message alone and all calls of the last round, down and up."""
    task = make_task(SETTINGS | {"rounds": ROUNDS})
    server = DeployedServer(task, Deployment())
    allowed = Consent(sets=("all",), least_samples=1)
    node = Node(node_id=NAME)
    for number in range(task.clients):
        client = Client(task, number, folder, consent=allowed)
        server.meet(Hello.of(client.hello().fields()))
    for _ in range(ROUNDS):
        orders = server.open(set(range(task.clients)))
        down: list[tuple[int, int]] = []
        up: list[tuple[int, int]] = []
        for number, order in orders.items():
            sent = order_message(order.fields())
            answer: Answer = Client(task, number, folder, consent=allowed).handle(order)
            content = RecordDict({RECORD: ConfigRecord(answer.fields())})
            reply = named(Message(content, reply_to=sent))
            down.append((alone(sent), pulled(sent, node)))
            up.append((alone(reply), pushed(reply, node)))
            server.take(number, answer.fields())
        record = server.close()
    n = task.clients
    return [
        ("down", record.bytes_down // n, record.evidence_down // n, *mean(down)),
        ("up", record.bytes_up // n, record.evidence_up // n, *mean(up)),
    ]


def alone(message: Message) -> int:
    """Return the bytes of a message and its objects, without calls."""
    header = message_to_proto(remove_content_from_message(message)).ByteSize()
    objects = get_all_nested_objects(message).values()
    return int(header + sum(len(one.deflate()) for one in objects))


def mean(sizes: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the means of both columns, in whole bytes."""
    first, second = zip(*sizes, strict=True)
    return round(sum(first) / len(sizes)), round(sum(second) / len(sizes))


def main() -> None:
    """Print the table."""
    for name in ("task_id", "run_id", "node_id"):
        setattr(TaskIdentity, name, NAME)  # messages can be made only where an app runs
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    header = ("a client's message", "payload", "checks", "message with its objects", "all calls")
    print("\n".join(markdown(header, [tuple(str(value) for value in row) for row in found])))


if __name__ == "__main__":
    main()
