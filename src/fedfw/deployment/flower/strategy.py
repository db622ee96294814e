"""Flower's side of the server: turns orders into Flower messages and Flower's replies into
answers.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedfw.deployment.messages import MOST_FIELDS, Hello, Order
from fedfw.deployment.server import DeployedServer
from fedfw.deployment.settings import fleet_allowance
from fedfw.errors import MessageError

RECORD = "fedfw"
"""The one record of every message: a ConfigRecord, which costs a fifth of two tiny arrays."""
Result = TypeVar("Result")
_LOOK_AGAIN = 1.0  # seconds
# seconds until a node that is no client is asked who it is once more; twice as long each time
_ASK_AGAIN = 30.0
# seconds without any answer until nodes that were asked who they are are no longer waited for
_QUIET = 30.0
_POLL = 3.0  # seconds between two looks of an idle SuperNode for messages
_SPARE_LIFE = 60.0  # seconds that a message outlives the round's timeout
_NO_ANSWER = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
"""Errors that the SuperLink sends in a node's place, where the node did not answer in time."""


class FedFWStrategy(Strategy):
    """Drives a `DeployedServer` over a Flower grid.

    Parameters
    ----------
    server : DeployedServer
        Its settings say how long a round waits for answers, and the first one for clients.
    """

    def __init__(self, server: DeployedServer) -> None:
        """Keep the server; no node is known yet."""
        self.server = server
        clients = max(server.task.clients, len(server.roster))
        self.round_seconds = server.settings.round_seconds(clients)
        self._start_seconds = server.settings.start_seconds(clients)
        # By message: the node that was asked, and until when.
        self._questions: dict[str, tuple[int, float]] = {}
        self._clients: dict[int, int] = {}  # by node: those that are here
        # By node: when to ask who it is, and when after that.
        self._asked_again: dict[int, tuple[float, float]] = {}
        self._asked = 0.0
        self._own_seconds = 0.0

    # --- what Flower calls ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Open a round, run all of its exchanges but the last, and return the messages of the
        last.
        """
        self._meet(grid)
        self._wait(grid, all_clients=server_round == 1)
        orders = self._timed(self.server.open, set(self._clients.values()))
        while orders and not self.server.is_last_exchange:
            self._take(grid.send_and_receive(self._messages(orders), timeout=self.round_seconds))
            orders = self._timed(self.server.next_exchange)
        self._asked = time.perf_counter()
        return self._messages(orders)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the answers of the last exchange, close the round, and return its numbers."""
        waited = time.perf_counter() - self._asked
        self._take(replies)
        seconds = {"waiting": waited, "server": self._own_seconds}
        self._own_seconds = 0.0
        # What closing takes counts in the next round.
        record = self._timed(self.server.close, seconds)
        metrics = {
            "round": record.round,
            "counted": record.participants,
            "invited": record.invited,
            "refused": sum(record.refused.values()),
            "bytes-up": record.bytes_up,
            "loss": record.test_loss,
            "accuracy": record.accuracy,
        }
        return None, MetricRecord({k: value for k, value in metrics.items() if value is not None})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []  # the server's test data are all that is evaluated

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Log the algorithm with its set."""
        algorithm = self.server.task.algorithm
        log(INFO, "\t└──> %s on %r", algorithm.name, algorithm.constraint)

    # --- nodes and messages ---

    def _messages(self, orders: Mapping[int, Order]) -> list[Message]:
        """Return orders as messages to the clients' nodes."""
        nodes = {client: node for node, client in self._clients.items()}
        life = self.round_seconds + _SPARE_LIFE
        return [
            _message(nodes[client], MessageType.TRAIN, order.fields(), life)
            for client, order in orders.items()
        ]

    def _take(self, replies: Iterable[Message]) -> None:
        """Pass replies on to the server; one that cannot be read is refused."""
        for reply in replies:
            client = self._clients.get(reply.metadata.src_node_id)
            try:
                fields = content(reply)
            except MessageError as error:
                self.server.refuse(client, str(error))
                continue
            self._timed(self.server.take, client, fields)

    def _timed(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function of the server, and add its seconds to the server's."""
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self._own_seconds += time.perf_counter() - began

    def _meet(self, grid: Grid) -> None:
        """Ask nodes that are new which client they are, and forget those that are gone.

        Nodes that are here and no client, because they do not answer, are asked less and less
        often: asking takes time. A question lives as long as a fleet of this size needs to answer,
        and no node has two at the same time.
        """
        nodes = {node.node_id: _identity(node) for node in grid.get_nodes()}
        members = set(self.server.roster.members)
        self._clients = {
            n: client for n, client in self._clients.items() if n in nodes and client in members
        }
        self._asked_again = {n: when for n, when in self._asked_again.items() if n in nodes}
        now = time.monotonic()
        self._questions = {
            name: (node, until)
            for name, (node, until) in self._questions.items()
            if until > now and node in nodes
        }
        known = self._clients.keys() | {node for node, _ in self._questions.values()}
        life = _QUIET + _POLL + fleet_allowance(len(nodes))
        due = []
        for node in [n for n in nodes if n not in known]:
            when, pause = self._asked_again.get(node, (now, _ASK_AGAIN))
            if when <= now:
                due.append(node)
                self._asked_again[node] = (now + pause, 2 * pause)
        questions = [_message(node, MessageType.QUERY, {}, life) for node in due]
        names = list(grid.push_messages(questions)) if questions else []
        # A message that Flower does not take has no name, and its node is asked again later.
        new = {name: (node, now + life) for name, node in zip(names, due, strict=False) if name}
        self._questions |= new
        self._hear(grid, nodes, set(new))

    def _hear(self, grid: Grid, nodes: Mapping[int, str], new: set[str]) -> None:
        """Take answers to questions; the new ones are waited for as long as any answers come.

        One that comes later is taken when nodes are looked at next: a fleet's answers come one
        after another, and how long the last one takes is not known.
        """
        quiet = min(self.round_seconds, _QUIET)
        until = time.monotonic() + quiet
        while self._questions:
            replies = list(grid.pull_messages(list(self._questions)))
            for reply in replies:
                node, _ = self._questions.pop(reply.metadata.reply_to_message_id, (None, 0.0))
                if node is None or (reply.has_error() and reply.error.code in _NO_ANSWER):
                    continue
                try:
                    self._introduce(reply, node, nodes.get(node, ""))
                except MessageError as error:
                    self.server.refuse(None, str(error))
            now = time.monotonic()
            if replies:
                until = now + quiet
            if not new & self._questions.keys() or now >= until:
                return
            time.sleep(_LOOK_AGAIN)

    def _introduce(self, reply: Message, node: int, identity: str) -> None:
        """Note which client a node says it is."""
        fields = content(reply)
        if not identity or reply.metadata.src_node_id != node:
            raise MessageError("unknown sender")
        try:
            hello = Hello.of(fields)
        except MessageError as error:
            raise MessageError(f"undecodable: {error}") from None
        if hello.leaving and hello.client not in self.server.roster.counted:
            return  # it has left
        self.server.meet(hello, identity)
        self._clients[node] = hello.client

    def _wait(self, grid: Grid, all_clients: bool) -> None:
        """Wait until a client is there, or all of them: a round without any would only run the
        clock down.
        """
        until = time.monotonic() + self._start_seconds
        while missing := set(self.server.roster.members) - set(self._clients.values()):
            if self._clients and (not all_clients or time.monotonic() > until):
                if all_clients:
                    log(WARNING, "going on without clients %s", sorted(missing))
                return
            if time.monotonic() > until:
                raise TimeoutError(
                    f"no client came within {self._start_seconds:.0f} s; resume=true goes on later"
                )
            time.sleep(_LOOK_AGAIN)
            self._meet(grid)


def _identity(node: NodeInfo) -> str:
    """Return what identifies a node: the hash of its key, of which Flower's SuperLink demands a
    signature with every call.
    """
    if node.public_key:
        return hashlib.sha256(node.public_key).hexdigest()
    return f"node {node.node_id}"


def _message(node: int, kind: str, fields: dict[str, Any], life: float) -> Message:
    return Message(
        RecordDict({RECORD: ConfigRecord(fields)}), dst_node_id=node, message_type=kind, ttl=life
    )


def content(message: Message) -> dict[str, Any]:
    """Return the fields of a message; raises `MessageError` where there are none."""
    if message.has_error():
        raise MessageError(f"failed: {message.error.reason}")
    record = message.content.get(RECORD)
    if not isinstance(record, ConfigRecord) or len(message.content) != 1:
        raise MessageError("undecodable: not one record of ours")
    if len(record) > MOST_FIELDS:
        raise MessageError(f"oversized: {len(record)} fields, expected at most {MOST_FIELDS}")
    return dict(record)
