"""Owners, their clients and a server, wired together without a network."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedfw.secure_sums import (
    Client,
    ClientState,
    Consent,
    Journal,
    Phase,
    Primitives,
    RealPrimitives,
    SecureSum,
    Server,
    ServerState,
    Terms,
    fingerprint,
)
from fedfw.secure_sums.messages import Survivors


class Federation:
    """n owners in the order of the terms' list."""

    def __init__(
        self,
        n: int,
        *,
        entries: int = 6,
        span: int = 2,
        primitives: Primitives | None = None,
        changes: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.primitives = primitives or RealPrimitives()
        made = [bytes([1 + i // 200, i % 200]) + bytes(30) for i in range(n)]
        self.keys = sorted(made, key=self.primitives.public_identity)
        owners = tuple(self.primitives.public_identity(key) for key in self.keys)
        terms = Terms.for_owners(b"run", owners, entries=entries, span=span, **options)
        self.terms = replace(terms, **(changes or {}))
        prints = frozenset(fingerprint(owner) for owner in owners)
        self.consent = Consent(prints, self.terms.least, self.terms.colluders)
        self.journals = [Journal() for _ in range(n)]
        self.clients = [self.client(i) for i in range(n)]
        self.server = Server(self.terms, primitives=self.primitives)

    def client(self, i: int, state: ClientState | None = None) -> Client:
        """Return a new process of client i."""
        return Client(self.keys[i], self.consent, self.journals[i], state, self.primitives)

    def phase(self, numbers: Sequence[Any] | None = None, absent: Collection[int] = ()) -> None:
        """Let all but the absent clients answer, and end the phase."""
        for i, client in enumerate(self.clients):
            message = self.server.message_for(i)
            if message is not None and i not in absent:
                self.server.receive(i, client.answer(message, numbers[i] if numbers else None))
        self.server.advance()

    def set_up(self, absent: Collection[int] = ()) -> None:
        """Begin the batch; the absent clients deal no shares."""
        for phase in (Phase.COMMIT, Phase.OPEN, Phase.PUBLISH, Phase.DEAL):
            assert self.server.phase == phase
            self.phase(absent=absent if phase == Phase.DEAL else ())

    def sum(
        self,
        numbers: Sequence[Any],
        number: int = 0,
        at_upload: Collection[int] = (),
        at_agreement: Collection[int] = (),
        at_reveal: Collection[int] = (),
    ) -> SecureSum:
        """Return the sum of a round; clients leave at the phases that are given."""
        self.server.start_round(number)
        self.phase(numbers, at_upload)
        self.phase(absent={*at_upload, *at_agreement})
        self.phase(absent={*at_upload, *at_agreement, *at_reveal})
        return self.server.finish()

    def restart(self) -> None:
        """Replace every client and the server by new processes that read what was kept."""
        self.clients = [
            self.client(i, ClientState.from_bytes(client.state.to_bytes()))
            for i, client in enumerate(self.clients)
        ]
        kept = ServerState.from_bytes(self.server.state.to_bytes())
        self.server = Server(self.terms, kept, self.primitives)


def random_numbers(federation: Federation, seed: int = 0) -> list[Any]:
    """Return numbers for every client, in the whole range that the terms allow."""
    generator = np.random.default_rng(seed)
    size = (len(federation.clients), federation.terms.entries)
    return list(generator.integers(0, federation.terms.span + 1, size))


def at_round(n: int = 5, **options: Any) -> tuple[Federation, list[Any]]:
    """Return a federation whose clients have uploaded in round 0, and their numbers."""
    federation = Federation(n, **options)
    federation.set_up()
    numbers = random_numbers(federation)
    federation.server.start_round(0)
    federation.phase(numbers)
    return federation, numbers


def bits(n: int, clients: Iterable[int]) -> tuple[bool, ...]:
    return tuple(i in set(clients) for i in range(n))


def survivors(n: int, *clients: int, number: int = 0) -> bytes:
    return Survivors(number, bits(n, clients)).to_bytes()
