"""The server's part of the protocol: a state machine that collects answers and adds them up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfw.secure_sums.errors import (
    ListError,
    PhaseError,
    TooFewSignaturesError,
)
from fedfw.secure_sums.graph import RoundPlan
from fedfw.secure_sums.messages import (
    Agreement,
    Certificate,
    Commitment,
    Deal,
    Keys,
    Opening,
    Openings,
    Order,
    Reveal,
    Survivors,
    Upload,
)
from fedfw.secure_sums.recovery import remove_masks
from fedfw.secure_sums.server_setup import Relay
from fedfw.secure_sums.statements import list_statement, upload_statement
from fedfw.secure_sums.states import Phase
from fedfw.secure_sums.wire import Bits, Message, require_length, require_rows

_EXPECTED: dict[Phase, type[Message]] = {
    Phase.COMMIT: Commitment,
    Phase.OPEN: Opening,
    Phase.PUBLISH: Keys,
    Phase.DEAL: Deal,
    Phase.UPLOAD: Upload,
    Phase.AGREE: Agreement,
    Phase.REVEAL: Reveal,
}


@dataclass(frozen=True)
class SecureSum:
    """The sum and all else that the server learns of a round.

    Parameters
    ----------
    total : array
        The sum of the survivors' numbers, int64 of shape (p,).
    clients : tuple of int
        The survivors, as positions in the owners' list.
    """

    total: npt.NDArray[np.int64]
    clients: tuple[int, ...]


class Server(Relay):
    """The server of a batch of rounds.

    Parameters
    ----------
    terms : Terms
        What it proposes to the owners.
    state : ServerState, optional
        What an earlier process kept.
    primitives : Primitives, optional
        Other primitives than the real ones, for tests.

    Raises
    ------
    TermsError
        If the terms are not safe.

    Notes
    -----
    A phase is: send ``message_for(client)`` to every client for which it is not None, give each
    answer to `receive`, then `advance`. The phases of a batch are COMMIT, OPEN, PUBLISH and DEAL;
    each round is begun by `start_round` and has UPLOAD, AGREE and REVEAL; `finish` returns its sum.

    Examples
    --------
    Three owners, whose numbers are added up without the server seeing them:

    >>> import numpy as np, secrets
    >>> from fedfw.secure_sums import Client, Consent, Journal, Server, Terms
    >>> from fedfw.secure_sums import fingerprint, public_identity
    >>> keys = sorted((secrets.token_bytes(32) for _ in range(3)), key=public_identity)
    >>> owners = tuple(public_identity(key) for key in keys)
    >>> consent = Consent(frozenset(fingerprint(owner) for owner in owners), least=3)
    >>> clients = [Client(key, consent, Journal()) for key in keys]
    >>> server = Server(Terms.for_owners(b"run", owners, entries=2, span=9))
    >>> def exchange():
    ...     for i, client in enumerate(clients):
    ...         server.receive(i, client.answer(server.message_for(i), np.array([i, 9])))
    ...     server.advance()
    >>> for _ in range(4):
    ...     exchange()
    >>> server.start_round(0)
    >>> for _ in range(3):
    ...     exchange()
    >>> server.finish().total.tolist()
    [3, 27]
    """

    def message_for(self, client: int) -> bytes | None:
        """Return the message of the present phase for a client; None if there is none.

        Parameters
        ----------
        client : int
            Its position in the owners' list.

        Returns
        -------
        bytes or None
            The message.
        """
        state = self.state
        if self.phase == Phase.COMMIT:
            return self.terms.to_bytes()
        if client not in state.members or self.phase == Phase.IDLE:
            return None
        if self.phase == Phase.OPEN:
            return self._commitments()
        if self.phase == Phase.PUBLISH:
            values = tuple(state.openings[member] for member in state.members)
            return Openings(values).to_bytes()
        if self.phase == Phase.DEAL:
            return self._keyring(client)
        plan = self._batch().plan(state.number)
        if self.phase == Phase.UPLOAD:
            return self._order(client, plan) if _has(state.dealers, plan, client) else None
        if not _has(state.survivors, plan, client):
            return None
        if self.phase == Phase.AGREE:
            return Survivors(state.number, state.survivors).to_bytes()
        return self._certificate(client, plan) if client in state.signatures else None

    def receive(self, sender: int, message: bytes) -> None:
        """Take a client's answer; one that is refused changes nothing.

        Parameters
        ----------
        sender : int
            The client from which it came, as the transport has authenticated it.
        message : bytes
            Its answer.

        Raises
        ------
        SecureSumError
            With a subclass that names the reason.
        """
        if self.phase not in _EXPECTED:
            raise PhaseError("no round is under way")
        found: Any = _EXPECTED[self.phase].from_bytes(message)
        if found.sender != sender or not 0 <= sender < len(self.terms.owners):
            raise PhaseError(f"client {sender} sent a message in the name of {found.sender}")
        take: dict[Phase, Callable[[Any], None]] = {
            Phase.COMMIT: self._take_commitment,
            Phase.OPEN: self._take_opening,
            Phase.PUBLISH: self._take_keys,
            Phase.DEAL: self._take_deal,
            Phase.UPLOAD: self._take_upload,
            Phase.AGREE: self._take_agreement,
            Phase.REVEAL: self._take_reveal,
        }
        take[self.phase](found)

    def advance(self) -> None:
        """End the present phase with the answers that came.

        Raises
        ------
        ListError, TooFewSignaturesError
            If they are too few. The phase goes on then: wait for more, or `abandon_round`.
        """
        state = self.state
        if self.phase < Phase.IDLE:
            self._advance_setup()
        elif self.phase == Phase.UPLOAD:
            plan = self._batch().plan(state.number)
            survivors = tuple(client in state.uploads for client in plan.invited)
            self._require_enough(survivors, "uploads")
            state.survivors, state.phase = survivors, Phase.AGREE
        elif self.phase == Phase.AGREE:
            if len(state.signatures) < self.terms.signatures:
                raise TooFewSignaturesError(
                    f"{len(state.signatures)} clients signed the list, expected at least "
                    f"{self.terms.signatures}"
                )
            state.phase = Phase.REVEAL
        elif self.phase == Phase.IDLE:
            raise PhaseError("no phase to end: begin a round")

    def start_round(self, number: int) -> None:
        """Begin a round.

        Parameters
        ----------
        number : int
            A round of the batch, later than all rounds that were begun.

        Raises
        ------
        PhaseError, ListError
            If it is not the time for it, or too few clients dealt shares for it.
        """
        state = self.state
        if self.phase != Phase.IDLE or number not in self._batch().rounds:
            raise PhaseError(f"round {number} cannot begin now")
        if number < max(state.counters.values(), default=0):
            raise PhaseError(f"round {number} has been summed already")
        plan = self._batch().plan(number)
        dealt = state.sealed.get(number, {})
        dealers = tuple(client in dealt for client in plan.invited)
        self._require_enough(dealers, "dealers")
        state.number, state.dealers, state.survivors = number, dealers, ()
        state.uploads, state.signatures, state.reveals = {}, {}, {}
        state.phase = Phase.UPLOAD

    def abandon_round(self) -> None:
        """Give up the round under way; its masks stay used."""
        if self.phase > Phase.IDLE:
            self.state.uploads, self.state.signatures, self.state.reveals = {}, {}, {}
            self.state.phase = Phase.IDLE

    def finish(self) -> SecureSum:
        """Return the sum of the round under way, and end the round.

        Returns
        -------
        SecureSum
            The sum and whose it is.

        Raises
        ------
        TooFewSharesError, ShareError
            If the masks cannot be removed with the shares that came.
        """
        state = self.state
        if self.phase != Phase.REVEAL:
            raise PhaseError("no sum is ready")
        plan, ring = self._batch().plan(state.number), self.terms.ring
        survivors = tuple(client for client in plan.invited if _has(state.survivors, plan, client))
        total = np.zeros(self.terms.entries, ring.dtype)
        for client in survivors:
            ring.add(total, ring.unpack(state.uploads[client][0], self.terms.entries))
        remove_masks(
            total,
            self._batch(),
            plan,
            state.dealers,
            state.survivors,
            state.records[state.number],
            state.reveals,
            self._primitives,
        )
        self.abandon_round()
        return SecureSum(total.astype(np.int64), survivors)

    # --- what is sent ---

    def _order(self, client: int, plan: RoundPlan) -> bytes:
        state = self.state
        sealed = state.sealed[state.number]
        rows = [
            sealed[dealer].get(client, b"")
            for dealer in plan.neighbours(client)
            if _has(state.dealers, plan, dealer)
        ]
        counter = state.counters.get(client, 0)
        return Order(state.number, counter, state.dealers, tuple(rows)).to_bytes()

    def _certificate(self, client: int, plan: RoundPlan) -> bytes:
        state = self.state
        around = [other for other in plan.holders(client) if _has(state.survivors, plan, other)]
        uploads = [state.uploads[other] for other in around]
        signers = tuple(other in state.signatures for other in plan.invited)
        return Certificate(
            state.number,
            signers,
            tuple(state.signatures[other] for other in plan.invited if other in state.signatures),
            tuple(hashlib.sha256(numbers).digest() for numbers, _ in uploads),
            tuple(signature for _, signature in uploads),
        ).to_bytes()

    # --- what is received ---

    def _take_upload(self, found: Upload) -> None:
        state, client = self.state, found.sender
        plan = self._round_of(found.round, client, state.dealers)
        self._once(client in state.uploads)
        self.terms.ring.check(found.numbers, self.terms.entries)
        digest = hashlib.sha256(found.numbers).digest()
        statement = upload_statement(self._batch().context, plan.number, state.dealers, digest)
        self._primitives.verify(self.terms.owners[client], found.signature, statement)
        state.uploads[client] = found.numbers, found.signature
        state.counters[client] = found.round + 1

    def _take_agreement(self, found: Agreement) -> None:
        state, client = self.state, found.sender
        plan = self._round_of(found.round, client, state.survivors)
        self._once(client in state.signatures)
        statement = list_statement(
            self._batch().context, plan.number, state.dealers, state.survivors
        )
        self._primitives.verify(self.terms.owners[client], found.signature, statement)
        state.signatures[client] = found.signature

    def _take_reveal(self, found: Reveal) -> None:
        state, client = self.state, found.sender
        plan = self._round_of(found.round, client, state.survivors)
        self._once(client in state.reveals)
        dealers = [other for other in plan.holders(client) if _has(state.dealers, plan, other)]
        require_length(found.held, len(dealers), "held shares")
        held = [dealer for dealer, there in zip(dealers, found.held, strict=True) if there]
        require_rows(found.shares, len(held), self._primitives.share_bytes, "shares")
        state.reveals[client] = dict(zip(held, found.shares, strict=True))

    # --- helpers ---

    def _round_of(self, number: int, client: int, clients: Bits) -> RoundPlan:
        """Return the plan of the round under way, to which this message must belong."""
        plan = self._batch().plan(self.state.number)
        if number != self.state.number or not _has(clients, plan, client):
            raise PhaseError(f"client {client} has no part in round {number} now")
        return plan

    def _require_enough(self, clients: Bits, what: str) -> None:
        fewest = max(self.terms.least, self.terms.invited - self.terms.dropouts)
        if sum(clients) < fewest:
            raise ListError(f"{sum(clients)} {what}, expected at least {fewest}")


def _has(clients: Bits, plan: RoundPlan, client: int) -> bool:
    """Return whether a client is invited and on the list."""
    return client in plan.place and clients[plan.place[client]]
