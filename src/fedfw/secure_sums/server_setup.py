"""How the server begins a batch: it relays commitments, openings, keys and encrypted shares."""

from __future__ import annotations

from fedfw.secure_sums.errors import ListError, PhaseError
from fedfw.secure_sums.graph import Batch
from fedfw.secure_sums.messages import (
    DIGEST,
    Commitment,
    Commitments,
    Deal,
    Keyring,
    Keys,
    Opening,
)
from fedfw.secure_sums.primitives import Primitives, RealPrimitives
from fedfw.secure_sums.statements import (
    KeyRecord,
    commitment_statement,
    record_bytes,
    verify_opening,
)
from fedfw.secure_sums.states import Phase, ServerState
from fedfw.secure_sums.terms import Terms
from fedfw.secure_sums.wire import require_length, require_rows


class Relay:
    """The server up to the first round of a batch; `Server` has the rounds."""

    def __init__(
        self,
        terms: Terms,
        state: ServerState | None = None,
        primitives: Primitives | None = None,
    ) -> None:
        terms.validate()
        self.terms = terms
        self.state = state or ServerState()
        self._primitives = primitives or RealPrimitives()
        self._batch_of_state: Batch | None = None
        self._probe = self._primitives.new_secret()

    @property
    def phase(self) -> Phase:
        """Return what the server waits for."""
        return Phase(self.state.phase)

    # --- what is sent ---

    def _commitments(self) -> bytes:
        members = set(self.state.members)
        found = [self.state.commitments[client] for client in self.state.members]
        bits = tuple(client in members for client in range(len(self.terms.owners)))
        return Commitments(
            bits, tuple(digest for digest, _ in found), tuple(signature for _, signature in found)
        ).to_bytes()

    def _keyring(self, client: int) -> bytes:
        present = []
        records = []
        for number in self._batch().rounds_of(client):
            known = self.state.records.get(number, {})
            for neighbour in self._batch().plan(number).neighbours(client):
                present.append(neighbour in known)
                if neighbour in known:
                    records.append(known[neighbour])
        return Keyring(tuple(present), tuple(records)).to_bytes()

    # --- what is received ---

    def _take_commitment(self, found: Commitment) -> None:
        digest, client = self.terms.digest, found.sender
        require_length(found.digest, DIGEST, "commitment")
        statement = commitment_statement(digest, client, found.digest)
        self._primitives.verify(self.terms.owners[client], found.signature, statement)
        self._once(client in self.state.commitments)
        self.state.commitments[client] = found.digest, found.signature

    def _take_opening(self, found: Opening) -> None:
        self._require_member(found.sender)
        self._once(found.sender in self.state.openings)
        digest, _ = self.state.commitments[found.sender]
        verify_opening(self.terms.digest, found.sender, found.value, digest)
        self.state.openings[found.sender] = found.value

    def _take_keys(self, found: Keys) -> None:
        """Keep a client's records, if others can use them."""
        batch, client = self._batch(), found.sender
        self._require_member(client)
        rounds = batch.rounds_of(client)
        self._once(any(client in self.state.records.get(number, {}) for number in rounds))
        require_rows(found.records, len(rounds), record_bytes(self._primitives), "records")
        for number, row in zip(rounds, found.records, strict=True):
            record = KeyRecord.from_row(row, self._primitives)
            statement = record.statement(batch.context, number, client)
            self._primitives.verify(self.terms.owners[client], record.signature, statement)
            # A key that cannot be used would keep its owner's neighbours out.
            self._primitives.agree(self._probe, record.mask, b"probe")
            self._primitives.agree(self._probe, record.envelope, b"probe")
        for number, row in zip(rounds, found.records, strict=True):
            self.state.records.setdefault(number, {})[client] = row

    def _take_deal(self, found: Deal) -> None:
        batch, client = self._batch(), found.sender
        self._require_member(client)
        pairs = [
            (number, neighbour)
            for number in batch.rounds_of(client)
            for neighbour in batch.plan(number).neighbours(client)
            if neighbour in self.state.records.get(number, {})
        ]
        require_rows(found.sealed, len(pairs), self._primitives.sealed_bytes, "shares")
        for number in batch.rounds_of(client):
            if client not in self.state.records.get(number, {}):
                raise PhaseError(f"client {client} deals without keys")
            self._once(client in self.state.sealed.get(number, {}))
        for number in batch.rounds_of(client):
            self.state.sealed.setdefault(number, {})[client] = {}
        for (number, neighbour), sealed in zip(pairs, found.sealed, strict=True):
            self.state.sealed[number][client][neighbour] = sealed

    # --- phases ---

    def _advance_setup(self) -> None:
        """End the present phase of the set-up."""
        if self.phase == Phase.COMMIT:
            if len(self.state.commitments) < self.terms.invited:
                raise ListError(
                    f"{len(self.state.commitments)} members, but {self.terms.invited} are invited "
                    "to a round"
                )
            self.state.members = tuple(sorted(self.state.commitments))
        if self.phase == Phase.OPEN:
            missing = [client for client in self.state.members if client not in self.state.openings]
            if missing:
                raise ListError(
                    f"client {missing[0]} did not open its value: begin again without it"
                )
        self.state.phase += 1

    # --- helpers ---

    def _batch(self) -> Batch:
        if self._batch_of_state is None:
            values = tuple(self.state.openings[client] for client in self.state.members)
            self._batch_of_state = Batch(self.terms, self.state.members, values)
        return self._batch_of_state

    def _require_member(self, client: int) -> None:
        if client not in self.state.members:
            raise PhaseError(f"client {client} is no member of the batch")

    def _once(self, known: bool) -> None:
        if known:
            raise PhaseError("a client's message of this phase came twice")
