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
        # By message: the node that was asked, and the time at which the question expires.
        self._questions: dict[str, tuple[int, float]] = {}
        self._clients: dict[int, int] = {}  # node -> client, of connected nodes
        # By node: the time of the next question, and the seconds between it and the one after it.
        self._next_questions: dict[int, tuple[float, float]] = {}
        self._sent_at = 0.0  # when the orders of the last exchange were sent
        self._own_seconds = 0.0  # of the server's own work in the present round

    # --- what Flower calls ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Open a round, run all of its exchanges but the last, and return the messages of the
        last.
        """
        self._meet_nodes(grid)
        self._wait(grid, all_clients=server_round == 1)
        orders = self._timed(self.server.open, set(self._clients.values()))
        while orders and not self.server.is_last_exchange:
            self._take(grid.send_and_receive(self._messages(orders), timeout=self.round_seconds))
            orders = self._timed(self.server.next_exchange)
        self._sent_at = time.perf_counter()
        return self._messages(orders)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the answers of the last exchange, close the round, and return no arrays, since
        clients get the model in orders, and the round's numbers.
        """
        waited = time.perf_counter() - self._sent_at
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

    def _meet_nodes(self, grid: Grid) -> None:
        """Ask new nodes for their clients' numbers, take the answers that have come, and forget
        nodes that are no longer connected.
        """
        identities = {node.node_id: _identity(node) for node in grid.get_nodes()}
        members = set(self.server.roster.members)
        self._clients = {
            node: client
            for node, client in self._clients.items()
            if node in identities and client in members
        }
        self._next_questions = {
            node: times for node, times in self._next_questions.items() if node in identities
        }
        now = time.monotonic()
        self._questions = {
            message: (node, expires)
            for message, (node, expires) in self._questions.items()
            if expires > now and node in identities
        }
        due = self._nodes_to_ask(identities, now)
        # A question lives as long as all nodes of a fleet of this size need to answer.
        life = _QUIET + _POLL + fleet_allowance(len(identities))
        questions = [_message(node, MessageType.QUERY, {}, life) for node in due]
        messages = list(grid.push_messages(questions)) if questions else []
        # A question that Flower does not accept has an empty identifier; its node is asked later.
        new = {
            message: (node, now + life)
            for message, node in zip(messages, due, strict=False)
            if message
        }
        self._questions |= new
        self._take_introductions(grid, identities, set(new))

    def _nodes_to_ask(self, nodes: Iterable[int], now: float) -> list[int]:
        """Return the nodes to be asked at a time: those that are no client, have no open question,
        and whose pause is over, which doubles with each question because asking takes time.
        """
        answered_or_asked = self._clients.keys() | {node for node, _ in self._questions.values()}
        due = []
        for node in nodes:
            if node in answered_or_asked:
                continue
            next_time, pause = self._next_questions.get(node, (now, _ASK_AGAIN))
            if next_time <= now:
                due.append(node)
                self._next_questions[node] = (now + pause, 2 * pause)
        return due

    def _take_introductions(self, grid: Grid, identities: Mapping[int, str], new: set[str]) -> None:
        """Take the answers to open questions; return when all questions in ``new`` are answered, or
        no answer has come for a while.

        A later answer is taken in the next round: a fleet's answers come one after another, and how
        long the last one takes is not known.
        """
        quiet_seconds = min(self.round_seconds, _QUIET)
        deadline = time.monotonic() + quiet_seconds
        while self._questions:
            replies = list(grid.pull_messages(list(self._questions)))
            for reply in replies:
                # No node for a reply to a question that has expired.
                node, _ = self._questions.pop(reply.metadata.reply_to_message_id, (None, 0.0))
                if node is None or (reply.has_error() and reply.error.code in _NO_ANSWER):
                    continue
                try:
                    self._introduce(reply, node, identities.get(node, ""))
                except MessageError as error:
                    self.server.refuse(None, str(error))
            now = time.monotonic()
            if replies:
                deadline = now + quiet_seconds
            if not new & self._questions.keys() or now >= deadline:
                return
            time.sleep(_LOOK_AGAIN)

    def _introduce(self, reply: Message, node: int, identity: str) -> None:
        """Register the node that sent a reply as the client that its introduction names; raises
        `MessageError` for a reply from another node and for a number of another node's key.
        """
        fields = content(reply)
        if not identity or reply.metadata.src_node_id != node:
            raise MessageError("unknown sender")
        try:
            hello = Hello.of(fields)
        except MessageError as error:
            raise MessageError(f"undecodable: {error}") from None
        if hello.leaving and hello.client not in self.server.roster.counted:
            return  # the client has left already
        self.server.meet(hello, identity)
        self._clients[node] = hello.client

    def _wait(self, grid: Grid, all_clients: bool) -> None:
        """Wait until at least one client is connected, or all clients, for at most the start's
        seconds; raises TimeoutError where none comes.
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
            self._meet_nodes(grid)


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
