"""Flower's side of the server: turns orders into Flower messages and Flower's replies into answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedfw.errors import MessageError
from fedfw.flower.messages import Hello, Order
from fedfw.flower.server import Coordinator

RECORD = "fedfw"
"""The one record of every message: a ConfigRecord, which costs a fifth of two tiny arrays."""
Result = TypeVar("Result")
_LOOK_AGAIN = 1.0  # seconds
_SPARE_LIFE = 60.0  # seconds that a message outlives the round's timeout


class FedFWStrategy(Strategy):
    """Drives a `Coordinator` over a Flower grid.

    Parameters
    ----------
    round_timeout
        Seconds that a round waits for answers; whoever is late is absent.
    start_timeout
        Seconds to wait for the clients that the task names.
    """

    def __init__(self, coordinator: Coordinator, round_timeout: float, start_timeout: float) -> None:
        self.coordinator = coordinator
        self._round_timeout, self._start_timeout = round_timeout, start_timeout
        self._clients: dict[int, int] = {}  # by node
        self._asked = 0.0
        self._own_seconds = 0.0

    # --- what Flower calls ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._meet(grid)
        if server_round == 1:
            self._wait_for_everyone(grid)
        online = set(self._clients.values())
        if anchor := self.coordinator.open_anchor(online):
            self._take(grid.send_and_receive(self._messages(anchor), timeout=self._round_timeout))
        messages = self._messages(self._ours(self.coordinator.open, online))
        self._asked = time.perf_counter()
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        waited = time.perf_counter() - self._asked
        self._take(replies)
        seconds = {"waiting": waited, "server": self._own_seconds}
        self._own_seconds = 0.0
        record = self._ours(self.coordinator.close, seconds)  # what closing takes counts in the next round
        numbers: dict[str, Any] = {"round": record.round, "counted": record.participants, "invited": record.invited}
        numbers |= {"refused": sum(record.refused.values()), "bytes-up": record.bytes_up}
        told = {"loss": record.test_loss, "accuracy": record.accuracy}
        return None, MetricRecord(numbers | {name: value for name, value in told.items() if value is not None})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []  # the server's test data are all that is evaluated

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        task = self.coordinator.task
        log(INFO, "\t└──> %s on %r", task.algorithm.name, task.constraint)

    # --- nodes and messages ---

    def _messages(self, orders: Mapping[int, Order]) -> list[Message]:
        nodes = {client: node for node, client in self._clients.items()}
        life = self._round_timeout + _SPARE_LIFE
        return [_message(nodes[client], MessageType.TRAIN, order.fields(), life) for client, order in orders.items()]

    def _take(self, replies: Iterable[Message]) -> None:
        for reply in replies:
            client = self._clients.get(reply.metadata.src_node_id)
            if reply.has_error():
                self.coordinator.refuse(client, f"failed: {reply.error.reason}")
            else:
                self._ours(self.coordinator.take, client, content(reply))

    def _ours(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call it and add its seconds to ours."""
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self._own_seconds += time.perf_counter() - began

    def _meet(self, grid: Grid) -> None:
        """Ask nodes that are new which client they are, and forget those that are gone."""
        nodes = set(grid.get_node_ids())
        self._clients = {node: client for node, client in self._clients.items() if node in nodes}
        strangers = nodes - set(self._clients)
        if not strangers:
            return
        asked = [_message(node, MessageType.QUERY, {}, self._round_timeout) for node in strangers]
        for reply in grid.send_and_receive(asked, timeout=self._round_timeout):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise MessageError(f"failed: {reply.error.reason}")
                client = Hello.of(content(reply)).client
                if client in self._clients.values():
                    raise MessageError(f"impostor: node {node} says it is client {client}, who is here")
                self.coordinator.admit(client)
                self._clients[node] = client
            except MessageError as error:
                self.coordinator.refuse(None, str(error))

    def _wait_for_everyone(self, grid: Grid) -> None:
        until = time.monotonic() + self._start_timeout
        while missing := set(self.coordinator.roster.members) - set(self._clients.values()):
            if time.monotonic() > until:
                if not self._clients:
                    raise TimeoutError(f"no client came within {self._start_timeout:.0f} s")
                log(WARNING, "going on without clients %s", sorted(missing))
                return
            time.sleep(_LOOK_AGAIN)
            self._meet(grid)


def _message(node: int, kind: str, fields: dict[str, Any], life: float) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(fields)}), dst_node_id=node, message_type=kind, ttl=life)


def content(message: Message) -> dict[str, Any]:
    """The fields of a message; raises `MessageError` where there are none."""
    record = message.content.get(RECORD)
    if not isinstance(record, ConfigRecord) or len(message.content) != 1:
        raise MessageError("undecodable: not one record of ours")
    return dict(record)
