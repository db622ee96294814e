"""How a client begins a batch: randomness that no coalition chooses, keys, and shares of both
secrets of every round.
"""

from __future__ import annotations

from fedfw.secure_sums.errors import ListError, PhaseError, RollbackError
from fedfw.secure_sums.graph import Batch
from fedfw.secure_sums.journal import Journal
from fedfw.secure_sums.messages import (
    DIGEST,
    Commitment,
    Commitments,
    Deal,
    Keyring,
    Keys,
    Opening,
    Openings,
)
from fedfw.secure_sums.primitives import Primitives, RealPrimitives
from fedfw.secure_sums.statements import (
    KeyRecord,
    commitment_statement,
    commitment_to,
    record_bytes,
    self_context,
    share_context,
    verify_opening,
)
from fedfw.secure_sums.states import ClientState
from fedfw.secure_sums.terms import Consent, Terms
from fedfw.secure_sums.wire import require_length, require_rows


class Member:
    """A client up to the first round of a batch; `Client` has the rounds."""

    def __init__(
        self,
        identity: bytes,
        consent: Consent,
        journal: Journal,
        state: ClientState | None = None,
        primitives: Primitives | None = None,
    ) -> None:
        self.state = state or ClientState()
        self._identity, self._consent, self._journal = identity, consent, journal
        self._primitives = primitives or RealPrimitives()
        self._public = self._primitives.public_identity(identity)
        self._batch_of_state: Batch | None = None
        self._terms_of_state: tuple[bytes, Terms] | None = None
        if self.state.serial > journal.entry.serial:
            raise RollbackError(
                f"the state was kept at entry {self.state.serial} of the journal, which has "
                f"{journal.entry.serial}"
            )

    def _commit(self, message: bytes) -> bytes:
        """Begin a batch, and commit to a random value."""
        terms = Terms.from_bytes(message)
        self._consent.check(terms, self._public)
        self._journal.count_start(self._consent.starts)
        self.state = ClientState(terms=message, value=self._primitives.new_secret()[:DIGEST])
        self._batch_of_state = None
        digest = commitment_to(terms.digest, self._index(terms), self.state.value)
        statement = commitment_statement(terms.digest, self._index(terms), digest)
        signature = self._primitives.sign(self._identity, statement)
        return Commitment(self._index(terms), digest, signature).to_bytes()

    def _open(self, message: bytes) -> bytes:
        """Open the value, once all members have committed to theirs."""
        if not self.state.terms or self.state.members:
            raise PhaseError("commitments come once, after the terms")
        terms = self._terms()
        found = Commitments.from_bytes(message)
        require_length(found.members, len(terms.owners), "members")
        members = [client for client, member in enumerate(found.members) if member]
        require_rows(found.digests, len(members), DIGEST, "commitments")
        require_rows(found.signatures, len(members), self._primitives.signature_bytes, "signatures")
        if self._index(terms) not in members or len(members) < terms.invited:
            raise ListError("the members lack this client, or are fewer than a round needs")
        for client, digest, signature in zip(members, found.digests, found.signatures, strict=True):
            statement = commitment_statement(terms.digest, client, digest)
            self._primitives.verify(terms.owners[client], signature, statement)
        if found.digests[members.index(self._index(terms))] != commitment_to(
            terms.digest, self._index(terms), self.state.value
        ):
            raise ListError("the members' commitments hold an old one of this client")
        self.state.commitments, self.state.members = message, tuple(members)
        return Opening(self._index(terms), self.state.value).to_bytes()

    def _publish(self, message: bytes) -> bytes:
        """Check all members' values, and publish fresh keys for every round."""
        if not self.state.members or self.state.openings:
            raise PhaseError("openings come once, after the commitments")
        terms, primitives = self._terms(), self._primitives
        values = Openings.from_bytes(message).values
        require_rows(values, len(self.state.members), DIGEST, "openings")
        digests = Commitments.from_bytes(self.state.commitments).digests
        for client, value, digest in zip(self.state.members, values, digests, strict=True):
            verify_opening(terms.digest, client, value, digest)
        self.state.openings, self.state.commitments = values, b""
        own = self._index(terms)
        records = []
        for number in self._batch().rounds_of(own):
            secrets = tuple(primitives.new_secret() for _ in range(3))
            self.state.secrets[number] = secrets  # type: ignore[assignment]
            records.append(self._record(number, *secrets).to_row())
        return Keys(own, tuple(records)).to_bytes()

    def _record(self, number: int, mask: bytes, envelope: bytes, seed: bytes) -> KeyRecord:
        """Return the signed record of a round's secrets."""
        context, own = self._batch().context, self._index(self._terms())
        record = KeyRecord(
            self._primitives.public_key(mask),
            self._primitives.public_key(envelope),
            self._primitives.check_value(seed, self_context(context, number, own)),
            b"",
        )
        signature = self._primitives.sign(self._identity, record.statement(context, number, own))
        return KeyRecord(record.mask, record.envelope, record.check, signature)

    def _deal(self, message: bytes) -> bytes:
        """Split both secrets of each round among the neighbours."""
        if not self.state.openings or self.state.dealt:
            raise PhaseError("a keyring comes once, after the openings")
        records = self._verified_records(Keyring.from_bytes(message))
        own = self._index(self._terms())
        sealed = []
        for number, (mask, envelope, seed) in self.state.secrets.items():
            shares = self._shares(number, mask, seed)
            self.state.own_shares[number] = shares[own]
            for neighbour, row in records[number].items():
                public = KeyRecord.from_row(row, self._primitives).envelope
                context = share_context(self._batch().context, number, own, neighbour)
                sealed.append(self._primitives.seal(envelope, public, context, shares[neighbour]))
        self.state.records, self.state.dealt = records, True
        return Deal(own, tuple(sealed)).to_bytes()

    def _verified_records(self, keyring: Keyring) -> dict[int, dict[int, bytes]]:
        """Return the rows of a keyring by round and neighbour, whose signatures are valid."""
        terms, batch = self._terms(), self._batch()
        own = self._index(terms)
        pairs = [
            (number, neighbour)
            for number in self.state.secrets
            for neighbour in batch.plan(number).neighbours(own)
        ]
        require_length(keyring.present, len(pairs), "keyring")
        present = [pair for pair, there in zip(pairs, keyring.present, strict=True) if there]
        require_rows(keyring.records, len(present), record_bytes(self._primitives), "records")
        records: dict[int, dict[int, bytes]] = {number: {} for number in self.state.secrets}
        for (number, neighbour), row in zip(present, keyring.records, strict=True):
            record = KeyRecord.from_row(row, self._primitives)
            statement = record.statement(batch.context, number, neighbour)
            self._primitives.verify(terms.owners[neighbour], record.signature, statement)
            records[number][neighbour] = row
        return records

    def _shares(self, number: int, mask: bytes, seed: bytes) -> dict[int, bytes]:
        """Return the shares of a self-mask seed and of a key seed, one after the other, by
        holder.
        """
        terms = self._terms()
        holders = self._batch().plan(number).holders(self._index(terms))
        seeds = self._primitives.split(seed, terms.threshold, len(holders))
        masks = self._primitives.split(mask, terms.threshold, len(holders))
        return {
            holder: one + other for holder, one, other in zip(holders, seeds, masks, strict=True)
        }

    # --- helpers ---

    def _terms(self) -> Terms:
        """Return the terms of the batch."""
        if self._terms_of_state is None or self._terms_of_state[0] != self.state.terms:
            self._terms_of_state = self.state.terms, Terms.from_bytes(self.state.terms)
        return self._terms_of_state[1]

    def _index(self, terms: Terms) -> int:
        """Return this client's position in the owners' list."""
        return terms.owners.index(self._public)

    def _batch(self) -> Batch:
        """Return the batch, whose randomness is known."""
        if self._batch_of_state is None:
            if not self.state.openings:
                raise PhaseError("no batch has begun")
            self._batch_of_state = Batch(self._terms(), self.state.members, self.state.openings)
        return self._batch_of_state
