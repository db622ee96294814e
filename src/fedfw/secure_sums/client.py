"""A client's part of the protocol: a state machine that answers messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfw.secure_sums.client_setup import Member
from fedfw.secure_sums.errors import (
    ListError,
    MissingKeysError,
    PhaseError,
    RangeError,
    RollbackError,
    RoundUsedError,
    ShareError,
    TooFewSignaturesError,
)
from fedfw.secure_sums.graph import RoundPlan
from fedfw.secure_sums.messages import (
    DIGEST,
    Agreement,
    Certificate,
    Commitments,
    Keyring,
    Openings,
    Order,
    Reveal,
    Survivors,
    Upload,
)
from fedfw.secure_sums.ring import Residues
from fedfw.secure_sums.statements import (
    KeyRecord,
    list_statement,
    pair_context,
    self_context,
    share_context,
    upload_statement,
)
from fedfw.secure_sums.states import CurrentRound
from fedfw.secure_sums.terms import Terms
from fedfw.secure_sums.wire import Bits, kind_of, require_length, require_rows

Numbers = npt.NDArray[np.integer[Any]]


class Client(Member):
    """One owner's client in one run.

    Parameters
    ----------
    identity : bytes
        The owner's Ed25519 signing key, 32 bytes.
    consent : Consent
        With whom the owner's numbers may be summed.
    journal : Journal
        What must survive a crash; a `FileJournal` outside of simulations.
    state : ClientState, optional
        What an earlier process kept.
    primitives : Primitives, optional
        Other primitives than the real ones, for tests.

    Raises
    ------
    RollbackError
        If the journal is older than the state.

    Notes
    -----
    Keep ``state.to_bytes()`` after each answer, in a file that its owner alone can read. A state
    that was lost or is old costs rounds, never privacy: the journal decides which masks and which
    lists can still be used.
    """

    def answer(self, message: bytes, numbers: Numbers | None = None) -> bytes:
        """Return the answer to a message of the server.

        Parameters
        ----------
        message : bytes
            What the server sent.
        numbers : array, optional
            For an `Order`: integers (p,) from 0 to the terms' ``span``, this client's part of the
            sum.

        Returns
        -------
        bytes
            The answer. The same message again gets the same bytes again.

        Raises
        ------
        SecureSumError
            With a subclass that names the reason. Nothing has been revealed then.
        """
        request = hashlib.sha256(message).digest()
        if request == self.state.request:
            return self.state.reply
        kind = kind_of(message)
        if kind == Order.kind:
            reply = self._upload(Order.from_bytes(message), numbers)
        else:
            steps: dict[int, Callable[[bytes], bytes]] = {
                Terms.kind: self._commit,
                Commitments.kind: self._open,
                Openings.kind: self._publish,
                Keyring.kind: self._deal,
                Survivors.kind: self._agree,
                Certificate.kind: self._reveal,
            }
            if kind not in steps:
                raise PhaseError(f"a client does not take messages of kind {kind}")
            reply = steps[kind](message)
        self.state.request, self.state.reply = request, reply
        self.state.serial = self._journal.entry.serial
        return reply

    # --- a round ---

    def _upload(self, order: Order, numbers: Numbers | None) -> bytes:
        """Mask the numbers, after this round's masks have been marked as used on the disk."""
        plan = self._plan_for(order)
        terms, own = self._terms(), self._index(self._terms())
        self._check_list(order.dealers, plan, own)
        mask, envelope, seed = self.state.secrets[order.round]
        dealers = self._dealing_neighbours(plan, order.dealers)
        shares = self._unsealed(order, plan, dealers, envelope)
        total = self._residues(numbers, terms)

        self._journal.use_round(order.round)
        context, primitives = self._batch().context, self._primitives
        ring = terms.ring
        ring.add(
            total,
            primitives.mask(seed, self_context(context, order.round, own), ring, terms.entries),
        )
        for other in dealers:
            row = self.state.records[order.round][other]
            bound = pair_context(context, order.round, own, other)
            pair = primitives.agree(mask, KeyRecord.from_row(row, primitives).mask, bound)
            values = primitives.mask(pair, bound, ring, terms.entries)
            if own < other:
                ring.add(total, values)
            else:
                ring.subtract(total, values)
        packed = ring.pack(total)
        digest = hashlib.sha256(packed).digest()
        statement = upload_statement(context, order.round, order.dealers, digest)
        shares[own] = self.state.own_shares[order.round]
        self.state.current = CurrentRound(order.round, order.dealers, shares)
        self._forget(order.round)
        signature = primitives.sign(self._identity, statement)
        return Upload(own, order.round, packed, signature).to_bytes()

    def _plan_for(self, order: Order) -> RoundPlan:
        """Return the plan of the round that is ordered, which must be a later one than all that
        were used.
        """
        entry = self._journal.entry
        if order.counter > entry.next_round:
            raise RollbackError(
                f"the server has an upload of round {order.counter - 1}, and the journal of this "
                f"client ends before round {entry.next_round}"
            )
        if order.round < entry.next_round:
            raise RoundUsedError(
                f"round {order.round} was summed or skipped, the next one is {entry.next_round}"
            )
        if not self.state.dealt or order.round not in self.state.secrets:
            raise PhaseError(f"this client is not invited to round {order.round}")
        return self._batch().plan(order.round)

    def _check_list(self, clients: Bits, plan: RoundPlan, own: int) -> None:
        """Refuse a list that is too short for the terms, or that lacks this client."""
        terms = self._terms()
        require_length(clients, len(plan.invited), "list of clients")
        if not clients[plan.place[own]]:
            raise ListError("this client is not on the list")
        count = sum(clients)
        fewest = max(terms.least, terms.invited - terms.dropouts)
        if count < fewest:
            raise ListError(f"a list of {count} clients, expected at least {fewest}")

    def _dealing_neighbours(self, plan: RoundPlan, dealers: Bits) -> list[int]:
        """Return the neighbours that are among the dealers."""
        own = self._index(self._terms())
        return [other for other in plan.neighbours(own) if dealers[plan.place[other]]]

    def _unsealed(
        self, order: Order, plan: RoundPlan, dealers: list[int], envelope: bytes
    ) -> dict[int, bytes]:
        """Return the shares from these dealers that can be decrypted."""
        require_rows(order.sealed, len(dealers), self._primitives.sealed_bytes, "shares")
        own = self._index(self._terms())
        shares = {}
        for dealer, sealed in zip(dealers, order.sealed, strict=True):
            row = self.state.records[order.round].get(dealer)
            if row is None:
                raise MissingKeysError(f"client {dealer} dealt, but its keys were never handed on")
            public = KeyRecord.from_row(row, self._primitives).envelope
            context = share_context(self._batch().context, order.round, dealer, own)
            # One dishonest dealer must not keep its neighbours out: its share is missing then.
            with suppress(ShareError):
                shares[dealer] = self._primitives.unseal(envelope, public, context, sealed)
        return shares

    def _residues(self, numbers: Numbers | None, terms: Terms) -> Residues:
        """Return the numbers as residues, if the sum of all clients' numbers cannot overflow."""
        if numbers is None or numbers.shape != (terms.entries,) or numbers.dtype.kind not in "iu":
            raise RangeError(f"an order needs {terms.entries} integers")
        if int(numbers.min()) < 0 or int(numbers.max()) > terms.span:
            raise RangeError(f"numbers must lie between 0 and {terms.span}")
        return terms.ring.residues(numbers)

    def _forget(self, number: int) -> None:
        """Delete the secrets of this round and of all earlier ones."""
        for kept in (self.state.secrets, self.state.records, self.state.own_shares):
            for past in [key for key in kept if key <= number]:
                del kept[past]

    def _agree(self, message: bytes) -> bytes:
        """Sign the list of survivors: one list in a round, which is on the disk first."""
        found = Survivors.from_bytes(message)
        current, own = self._current(found.round), self._index(self._terms())
        self._check_list(found.survivors, self._batch().plan(found.round), own)
        if any(
            there and not dealt
            for there, dealt in zip(found.survivors, current.dealers, strict=True)
        ):
            raise ListError("the list has survivors that dealt no shares")
        statement = list_statement(
            self._batch().context, found.round, current.dealers, found.survivors
        )
        self._journal.bind_list(found.round, hashlib.sha256(statement).digest())
        self.state.current = replace(current, survivors=found.survivors)
        signature = self._primitives.sign(self._identity, statement)
        return Agreement(own, found.round, signature).to_bytes()

    def _reveal(self, message: bytes) -> bytes:
        """Reveal a share of one secret of each dealer: which one follows from the list that the
        journal holds, so it can never be the other one.
        """
        certificate = Certificate.from_bytes(message)
        current = self._current(certificate.round)
        if current.survivors is None:
            raise PhaseError("this client has signed no list of survivors")
        plan, own = self._batch().plan(current.number), self._index(self._terms())
        statement = list_statement(
            self._batch().context, current.number, current.dealers, current.survivors
        )
        self._journal.bind_list(current.number, hashlib.sha256(statement).digest())
        self._check_signatures(certificate, plan, current.survivors, statement)
        self._check_uploads(certificate, plan, current, current.survivors)
        width = self._primitives.share_bytes
        held = []
        shares = []
        for dealer in plan.holders(own):
            if not current.dealers[plan.place[dealer]]:
                continue
            held.append(dealer in current.shares)
            if dealer in current.shares:
                survives = current.survivors[plan.place[dealer]]
                both = current.shares[dealer]
                shares.append(both[:width] if survives else both[width:])
        return Reveal(own, current.number, tuple(held), tuple(shares)).to_bytes()

    def _current(self, number: int) -> CurrentRound:
        current = self.state.current
        if current is None or current.number != number:
            raise PhaseError(f"round {number} is not under way at this client")
        return current

    def _check_signatures(
        self, certificate: Certificate, plan: RoundPlan, survivors: Bits, statement: bytes
    ) -> None:
        """Refuse a list that fewer survivors signed than any two lists could both have."""
        terms = self._terms()
        require_length(certificate.signers, len(plan.invited), "signers")
        signers = [
            client
            for client, signed, there in zip(
                plan.invited, certificate.signers, survivors, strict=True
            )
            if signed and there
        ]
        if len(signers) != sum(certificate.signers):
            raise ListError("a client that is not on the list has signed it")
        if len(signers) < terms.signatures:
            raise TooFewSignaturesError(
                f"{len(signers)} signatures of the list, expected at least {terms.signatures}"
            )
        require_rows(
            certificate.signatures, len(signers), self._primitives.signature_bytes, "signatures"
        )
        for client, signature in zip(signers, certificate.signatures, strict=True):
            self._primitives.verify(terms.owners[client], signature, statement)

    def _check_uploads(
        self, certificate: Certificate, plan: RoundPlan, current: CurrentRound, survivors: Bits
    ) -> None:
        """Refuse to help a sum in which a surviving neighbour masked its upload for other
        dealers.
        """
        terms, own = self._terms(), self._index(self._terms())
        around = [client for client in plan.holders(own) if survivors[plan.place[client]]]
        require_rows(certificate.digests, len(around), DIGEST, "digests of uploads")
        require_rows(certificate.proofs, len(around), self._primitives.signature_bytes, "proofs")
        for client, digest, proof in zip(
            around, certificate.digests, certificate.proofs, strict=True
        ):
            statement = upload_statement(
                self._batch().context, current.number, current.dealers, digest
            )
            self._primitives.verify(terms.owners[client], proof, statement)
