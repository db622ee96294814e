"""The round of a deployment: orders and answers of an exchange, and all that the record
and the journal say of it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from fedfw.atoms.base import stack_atoms, structure
from fedfw.deployment.messages import Answer, Order, refuse_oversized, require
from fedfw.errors import MessageError
from fedfw.rounds.channels import Sent
from fedfw.rounds.sums import Evidence

JOIN = "join"
LEAVE = "leave"
EXCHANGE = "exchange"
"""The moves of the coordinator."""


@dataclass
class Mail:
    """The orders of the present exchange, and the answers that were accepted."""

    orders: dict[int, Order] = field(default_factory=dict)
    sent: dict[int, Sent] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)

    def read(self, client: int, received: Mapping[str, Any], most_bytes: int) -> Answer:
        """Return a client's answer to its order; raises `MessageError` with a reason for a message
        that is too large, cannot be decoded, answers another order, or is the client's second one.
        """
        try:
            refuse_oversized(received, most_bytes)
            answer = Answer.of(received)
        except MessageError as error:
            reason = str(error)
            if not reason.startswith("oversized"):
                reason = f"undecodable: {reason}"
            raise MessageError(reason) from None
        order = self.orders[client]
        require(
            answer.run == order.run and answer.client == client,
            f"wrong run or client: {answer.run!r}, {answer.client}",
        )
        require(answer.t == order.t, f"wrong round: {answer.t}")
        require(client not in self.answers, "replayed")
        return answer

    def stack(self, counted: list[int]) -> Iterator[tuple[list[int], Sent, Evidence | None]]:
        """Yield, for each run of consecutive clients whose atoms have the same structure, these m
        clients, what they sent, stacked to (m, ...), and their numbers (m,) where all of the
        counted clients reported one.
        """

        def structures(client: int) -> tuple[Any, ...]:
            """Return the structures of a client's atoms; equal ones can be stacked."""
            return tuple(structure(atom) for atom in self.sent[client].values())

        reported = all(self.answers[client].number is not None for client in counted)
        for _, group in groupby(counted, key=structures):
            clients = list(group)
            uploads = [self.sent[client] for client in clients]
            # Clients of one exchange send the same names.
            sent = {name: stack_atoms([atoms[name] for atoms in uploads]) for name in uploads[0]}
            evidence = None
            if reported:
                numbers = [self.answers[client].number for client in clients]
                evidence = Evidence(torch.tensor(numbers, dtype=torch.float64))
            yield clients, sent, evidence


@dataclass
class Events:
    """The events of the present round, beside its exchanges."""

    invited: list[int] = field(default_factory=list)
    leaving: set[int] = field(default_factory=set)
    joined: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    restored: set[int] = field(default_factory=set)
    counted: list[int] = field(default_factory=list)
    """Clients that were counted in the last exchange."""
    guilty: set[int] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    ahead: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    moves: list[tuple[str, int]] = field(default_factory=list)
    """The coordinator's moves, in order: clients that joined or left, and exchanges by index."""
    exchanges: list[dict[str, Any]] = field(default_factory=list)
    """The journal's entry of each exchange."""
    payloads: list[bytes] = field(default_factory=list)
    """The answers that were counted in each exchange, one behind the other."""

    def count_exchange(self, counted: list[int], mail: Mail) -> None:
        """Note an exchange and the answers that it counted, for the record and for the journal."""
        self.counted = counted
        # A client that has just joined is handed its first memory, which is no restored one.
        for client in counted:
            if mail.orders[client].memory and client not in self.joined:
                self.restored.add(client)
        answers = [mail.answers[client] for client in counted]
        self.moves.append((EXCHANGE, len(self.exchanges)))
        self.payloads.append(b"".join(answer.payload for answer in answers))
        self.exchanges.append(
            {
                "counted": counted,
                "lengths": [len(answer.payload) for answer in answers],
                "losses": [answer.loss for answer in answers],
                "numbers": [answer.number for answer in answers],
            }
        )
