"""Who takes part: the clients' numbers, whose they are, their last counted round, and who is handed
its memory.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fedfw.deployment.messages import require
from fedfw.errors import MessageError


class Roster:
    """The clients that there are; client ``members[row]`` is the row of that number in the
    coordinator's memory.

    Parameters
    ----------
    clients : int
        How many there are at the start: 0, 1, ...

    Attributes
    ----------
    counted : dict of int to int
        The last exchange in which each client's answer was counted; 0 for none.
    needs_resync : set of int
        Clients that will be sent their memory, because theirs is lost, wrong, or not yet there.
    away : Counter
        Rounds in a row in which a client was asked and its answer was not counted.
    nodes : dict of int to str
        Whose number it is: what stands for the key of the node that claimed it first, also of
        clients that have left.
    empty : bool
        Whether the last client has left, too; it stays a member, because a mean needs one.
    """

    def __init__(self, clients: int) -> None:
        """Begin with clients 0, 1, ..., none of which was counted in an exchange."""
        self.counted = dict.fromkeys(range(clients), 0)  # its keys are the members
        self.needs_resync: set[int] = set()
        self.away: Counter[int] = Counter()  # a client that was counted last has no entry
        self.nodes: dict[int, str] = {}  # client -> what stands for its node's key
        self.empty = False

    @property
    def members(self) -> list[int]:
        """Return the clients' numbers, ascending."""
        return sorted(self.counted)

    def __len__(self) -> int:
        return len(self.counted)

    def row(self, client: int) -> int:
        """Return the client's row; of a client that is no member, the row that it would have."""
        return bisect_left(self.members, client)

    def rows(self, clients: Collection[int]) -> Tensor:
        """Return the rows (m,) of several clients."""
        place = {client: row for row, client in enumerate(self.members)}
        return torch.tensor([place[client] for client in clients], dtype=torch.int64)

    def bind(self, client: int, node: str) -> None:
        """Bind a client's number to the node that claims it first; raises `MessageError` for a
        claim by another node, and for a second number of the same node.

        Examples
        --------
        >>> roster = Roster(2)
        >>> roster.bind(1, "a key")
        >>> try:
        ...     roster.bind(1, "another key")
        ... except MessageError as error:
        ...     print(error)
        impostor: another key says it is client 1, whose number belongs to a key
        """
        owner = self.nodes.get(client, node)  # a number without an owner goes to this node
        claimed = {number for number, key in self.nodes.items() if key == node}
        require(
            owner == node,
            f"impostor: {node} says it is client {client}, whose number belongs to {owner}",
        )
        if claimed - {client}:
            raise MessageError(
                f"impostor: {node} says it is client {client}, and is client {min(claimed)}"
            )
        self.nodes[client] = node

    def unbind(self, clients: Collection[int] | None) -> None:
        """Let numbers be claimed anew, all of them for None: an operator has replaced their nodes'
        keys.
        """
        for client in list(self.nodes) if clients is None else clients:
            self.nodes.pop(client, None)

    def add(self, client: int) -> None:
        """Add a new client; it will be sent its memory."""
        self.counted[client] = 0
        self.needs_resync.add(client)

    def remove(self, client: int) -> None:
        """Remove a client that has left; its node keeps the number."""
        del self.counted[client]
        self.needs_resync.discard(client)
        self.away.pop(client, None)

    def count_exchange(self, clients: Collection[int], serial: int) -> None:
        """Note that an exchange was counted for these clients."""
        for client in clients:
            self.counted[client] = serial
        self.needs_resync -= set(clients)

    def count_round(self, clients: Collection[int], asked: Collection[int]) -> None:
        """Reset the counts of missed rounds of the clients that were counted in a round, and
        increase those of the others that were asked in it.
        """
        # A client that is counted after the last one had left takes part again.
        self.empty = self.empty and not clients
        self.away.update(client for client in asked if client not in clients)
        for client in clients:
            self.away.pop(client, None)

    def away_for(self, rounds: int) -> set[int]:
        """Return the clients that were asked in vain for so many rounds in a row; none for 0."""
        return {client for client, count in self.away.items() if 0 < rounds <= count}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON data."""
        return {
            "counted": sorted(self.counted.items()),
            "needs_resync": sorted(self.needs_resync),
            "away": sorted(self.away.items()),
            "nodes": sorted(self.nodes.items()),
            "empty": self.empty,
        }

    def load(self, held: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.counted = dict(held["counted"])
        self.needs_resync = set(held["needs_resync"])
        self.away = Counter(dict(held["away"]))
        self.nodes = dict(held["nodes"])
        self.empty = held["empty"]
