"""Who takes part, and what the server knows of each client: its memory, except what comes from its data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fedfw.algorithms.base import Algorithm, State
from fedfw.flower.messages import encode_vector


class Roster:
    """The clients that there are.

    Attributes
    ----------
    memory
        Rebuilt from the atoms that were counted: a stack (n, ...) in the order of ``members``.
    counted
        The last round in which each client's atom was counted; 0 for none.
    hand_back
        Clients that will be sent their memory, because theirs is lost, wrong, or not yet there.
    away
        Rounds in a row in which a client was wanted and its atom was not counted.
    """

    def __init__(self, algorithm: Algorithm, start: Tensor, clients: int) -> None:
        self._algorithm = algorithm
        self.memory: State = algorithm.start_clients(start.repeat(clients, 1))
        self.counted = dict.fromkeys(range(clients), 0)
        self.hand_back: set[int] = set()
        self.away: Counter[int] = Counter()

    @property
    def members(self) -> list[int]:
        """The clients' numbers, ascending."""
        return sorted(self.counted)

    def __len__(self) -> int:
        return len(self.counted)

    def rows(self, clients: Collection[int]) -> Tensor:
        """Their places in the stack."""
        place = {client: row for row, client in enumerate(self.members)}
        return torch.tensor([place[client] for client in clients], dtype=torch.int64)

    def states(self, rows: Tensor) -> State:
        """Their memory, copied."""
        return {name: values[rows] for name, values in self.memory.items()}

    def update(self, rows: Tensor, state: State) -> None:
        """What is known of them now."""
        for name, values in state.items():
            if name not in self._algorithm.private:
                self.memory[name][rows] = values

    def point(self, client: int) -> Tensor:
        """x_i, (p,)."""
        return self.memory["x"][self.members.index(client)]

    def handed(self, client: int) -> dict[str, bytes]:
        """What a client is sent that is to hold what the server knows; nothing where it holds that already."""
        if client not in self.hand_back:
            return {}
        row = self.members.index(client)
        known = {name: values[row] for name, values in self.memory.items() if name not in self._algorithm.private}
        return {name: encode_vector(vector) for name, vector in known.items()}

    def add(self, client: int, x: Tensor) -> None:
        """A client that begins at x (p,)."""
        newcomer = self._algorithm.start_clients(x[None].clone())
        self.counted[client] = 0
        row = self.members.index(client)
        self.memory = {
            name: torch.cat([values[:row], newcomer[name], values[row:]]) for name, values in self.memory.items()
        }
        self.hand_back.add(client)

    def remove(self, client: int) -> None:
        """A client that is gone."""
        self.memory = self.states(self.rows([member for member in self.members if member != client]))
        del self.counted[client]
        self.hand_back.discard(client)
        self.away.pop(client, None)

    def count(self, clients: Collection[int], t: int, wanted: Collection[int]) -> None:
        """Round t was counted for these clients, of those that were wanted in it."""
        self.away.update(client for client in wanted if client not in clients)
        for client in clients:
            self.counted[client] = t
            self.away.pop(client, None)
        self.hand_back -= set(clients)

    def meta(self) -> dict[str, Any]:
        """For a checkpoint, beside ``memory``."""
        return {
            "counted": sorted(self.counted.items()),
            "hand_back": sorted(self.hand_back),
            "away": sorted(self.away.items()),
        }

    def load(self, memory: State, meta: dict[str, Any]) -> None:
        """The inverse."""
        self.memory = memory
        self.counted = dict(meta["counted"])
        self.hand_back = set(meta["hand_back"])
        self.away = Counter(dict(meta["away"]))
