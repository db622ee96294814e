"""Who is invited to a round and who is whose neighbour, from the owners' list and public
randomness.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from fedfw.secure_sums.errors import TermsError
from fedfw.secure_sums.terms import Terms
from fedfw.secure_sums.wire import tagged


@dataclass(frozen=True)
class RoundPlan:
    """The clients of one round and their graph.

    Parameters
    ----------
    number : int
        Of the round.
    invited : tuple of int
        Positions in the owners' list, ascending.
    circle : tuple of int
        The same clients in random order.
    reach : int
        Clients at most so far apart on the circle are neighbours; 0 for a complete graph.
    """

    number: int
    invited: tuple[int, ...]
    circle: tuple[int, ...]
    reach: int

    @cached_property
    def place(self) -> dict[int, int]:
        """Return the place of each client among the invited ones."""
        return {client: place for place, client in enumerate(self.invited)}

    @cached_property
    def _spot(self) -> dict[int, int]:
        return {client: spot for spot, client in enumerate(self.circle)}

    def neighbours(self, client: int) -> tuple[int, ...]:
        """Return the neighbours of a client, ascending.

        With ``reach`` k/2 the graph is Harary's: it stays connected when any k - 1 clients are
        taken out of it.
        """
        if not self.reach:
            return tuple(other for other in self.invited if other != client)
        spot = self._spot[client]
        steps = [*range(-self.reach, 0), *range(1, self.reach + 1)]
        return tuple(sorted(self.circle[(spot + step) % len(self.circle)] for step in steps))

    def holders(self, client: int) -> tuple[int, ...]:
        """Return who holds shares of a client's secrets: its neighbours and itself, ascending.

        The share of the k-th holder is the value of Shamir's polynomial at k, from 1.
        """
        return tuple(sorted((*self.neighbours(client), client)))


@dataclass(frozen=True)
class Batch:
    """The terms, the members and the randomness of a batch of rounds.

    Parameters
    ----------
    terms : Terms
        What the members agreed on.
    members : tuple of int
        Positions in the owners' list of those who take part, ascending.
    openings : tuple of bytes
        The random value of each member. A value is fixed before any other one is seen, so no
        coalition that lacks one member can choose what follows from them.
    """

    terms: Terms
    members: tuple[int, ...]
    openings: tuple[bytes, ...]
    _plans: dict[int, RoundPlan] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.members) < self.terms.invited:
            raise TermsError(
                f"{len(self.members)} members, but {self.terms.invited} are invited to a round"
            )

    @cached_property
    def context(self) -> bytes:
        """Return the hash of all of it, to which every signature and mask is bound."""
        parts = [part for pair in zip(self.members, self.openings, strict=True) for part in pair]
        return hashlib.sha256(tagged("batch", self.terms.digest, *parts)).digest()

    @property
    def rounds(self) -> range:
        """Return the numbers of the rounds."""
        return range(self.terms.first, self.terms.first + self.terms.rounds)

    def plan(self, number: int) -> RoundPlan:
        """Return the clients and the graph of a round."""
        if number not in self._plans:
            invited = self._shuffled("invited", number, self.members)[: self.terms.invited]
            self._plans[number] = RoundPlan(
                number,
                tuple(sorted(invited)),
                self._shuffled("graph", number, invited),
                self.terms.degree // 2,
            )
        return self._plans[number]

    def rounds_of(self, client: int) -> list[int]:
        """Return the rounds to which a client is invited."""
        return [number for number in self.rounds if client in self.plan(number).place]

    def _shuffled(self, purpose: str, number: int, clients: tuple[int, ...]) -> tuple[int, ...]:
        """Return the clients in the order of a hash of the batch's randomness."""

        def draw(client: int) -> bytes:
            owner = self.terms.owners[client]
            return hashlib.sha256(tagged(purpose, self.context, number, owner)).digest()

        return tuple(sorted(clients, key=draw))
