"""The statements that are signed, and to which masks, shares and hashes are bound."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fedfw.secure_sums.errors import SignatureError
from fedfw.secure_sums.messages import DIGEST
from fedfw.secure_sums.primitives import Primitives
from fedfw.secure_sums.wire import Bits, tagged, write_bits


@dataclass(frozen=True)
class KeyRecord:
    """The keys that a client publishes for one round.

    Parameters
    ----------
    mask, envelope : bytes
        Public keys: of the pairwise masks, and of encrypted shares.
    check : bytes
        A hash of the self-mask seed.
    signature : bytes
        The owner's, of all of it.
    """

    mask: bytes
    envelope: bytes
    check: bytes
    signature: bytes

    def to_row(self) -> bytes:
        """Return the record as a row of a message."""
        return self.mask + self.envelope + self.check + self.signature

    @classmethod
    def from_row(cls, row: bytes, primitives: Primitives) -> KeyRecord:
        """Return the record of a row of `record_bytes` bytes."""
        width = primitives.public_bytes
        start = 2 * width + DIGEST
        return cls(row[:width], row[width : 2 * width], row[2 * width : start], row[start:])

    def statement(self, context: bytes, number: int, client: int) -> bytes:
        """Return what the owner signs."""
        return tagged("keys", context, number, client, self.mask, self.envelope, self.check)


def record_bytes(primitives: Primitives) -> int:
    """Return the length of a `KeyRecord` as a row."""
    return 2 * primitives.public_bytes + DIGEST + primitives.signature_bytes


def commitment_to(terms: bytes, client: int, value: bytes) -> bytes:
    """Return the hash that fixes a client's random value, for the digest of the terms."""
    return hashlib.sha256(tagged("value", terms, client, value)).digest()


def commitment_statement(terms: bytes, client: int, digest: bytes) -> bytes:
    """Return what a client signs when it commits to a value."""
    return tagged("commitment", terms, client, digest)


def upload_statement(context: bytes, number: int, dealers: Bits, digest: bytes) -> bytes:
    """Return what a client signs with its masked numbers, whose digest is given: for whom it
    masked them.
    """
    return tagged("upload", context, number, write_bits(dealers), digest)


def list_statement(context: bytes, number: int, dealers: Bits, survivors: Bits) -> bytes:
    """Return what every survivor signs before any share is revealed."""
    return tagged("survivors", context, number, write_bits(dealers), write_bits(survivors))


def share_context(context: bytes, number: int, dealer: int, holder: int) -> bytes:
    """Return what the encryption of a dealer's shares for a holder is bound to."""
    return tagged("shares", context, number, dealer, holder)


def self_context(context: bytes, number: int, client: int) -> bytes:
    """Return what a client's self mask is bound to."""
    return tagged("self", context, number, client)


def pair_context(context: bytes, number: int, one: int, other: int) -> bytes:
    """Return what the mask of two neighbours is bound to, the same for both."""
    return tagged("pair", context, number, min(one, other), max(one, other))


def verify_opening(terms: bytes, client: int, value: bytes, digest: bytes) -> None:
    """Refuse a random value that its client did not commit to."""
    if commitment_to(terms, client, value) != digest:
        raise SignatureError(f"client {client} opened another value than it committed to")
