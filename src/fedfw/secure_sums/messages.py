"""The messages of the protocol, in the order in which they are sent.

``sender`` is the position of a client's key in the owners' list of the terms. Lists of bits named
``dealers``, ``survivors`` and ``signers`` have one bit for each client that is invited to the
round, in ascending order of their positions in the owners' list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfw.secure_sums.wire import Bits, Message, Rows

DIGEST = 32
"""Bytes of a SHA-256 digest, and of the random value of an opening."""


@dataclass(frozen=True)
class Commitment(Message):
    """Client to server: a hash that fixes the client's part of the batch's randomness."""

    kind: ClassVar[int] = 2
    sender: int
    digest: bytes
    signature: bytes


@dataclass(frozen=True)
class Commitments(Message):
    """Server to clients: the owners that take part in the batch, and the commitment of each."""

    kind: ClassVar[int] = 3
    members: Bits
    digests: Rows
    signatures: Rows


@dataclass(frozen=True)
class Opening(Message):
    """Client to server: the value behind the commitment."""

    kind: ClassVar[int] = 4
    sender: int
    value: bytes


@dataclass(frozen=True)
class Openings(Message):
    """Server to clients: the values of all members, in ascending order."""

    kind: ClassVar[int] = 5
    values: Rows


@dataclass(frozen=True)
class Keys(Message):
    """Client to server: a signed `KeyRecord` for each round to which the client is invited."""

    kind: ClassVar[int] = 6
    sender: int
    records: Rows


@dataclass(frozen=True)
class Keyring(Message):
    """Server to one client: the records of its neighbours, round by round.

    ``present`` has a bit for each round of the client and each neighbour in it; ``records`` are
    those of the bits that are set.
    """

    kind: ClassVar[int] = 7
    present: Bits
    records: Rows


@dataclass(frozen=True)
class Deal(Message):
    """Client to server: encrypted shares, one row for each record of the client's keyring."""

    kind: ClassVar[int] = 8
    sender: int
    sealed: Rows


@dataclass(frozen=True)
class Order(Message):
    """Server to one client: upload for this round.

    ``dealers`` are the clients that dealt shares for it, ``sealed`` the encrypted shares from those
    of them that are neighbours. ``counter`` is one more than the last round of which the server has
    an upload of this client.
    """

    kind: ClassVar[int] = 9
    round: int
    counter: int
    dealers: Bits
    sealed: Rows


@dataclass(frozen=True)
class Upload(Message):
    """Client to server: the masked numbers."""

    kind: ClassVar[int] = 10
    sender: int
    round: int
    numbers: bytes
    signature: bytes


@dataclass(frozen=True)
class Survivors(Message):
    """Server to clients: the clients whose numbers the sum will contain."""

    kind: ClassVar[int] = 11
    round: int
    survivors: Bits


@dataclass(frozen=True)
class Agreement(Message):
    """Client to server: a signature of the round, its dealers and its survivors."""

    kind: ClassVar[int] = 12
    sender: int
    round: int
    signature: bytes


@dataclass(frozen=True)
class Certificate(Message):
    """Server to one client: the signatures of the list of survivors.

    ``digests`` and ``proofs`` show that the surviving neighbours of the client, and itself, masked
    their uploads for the same dealers: the digest and the signature of each upload.
    """

    kind: ClassVar[int] = 13
    round: int
    signers: Bits
    signatures: Rows
    digests: Rows
    proofs: Rows


@dataclass(frozen=True)
class Reveal(Message):
    """Client to server: a share of one secret of each neighbour that dealt, and of its own.

    It is the self-mask seed of a survivor, and the key seed of a dealer that is not a survivor.
    ``held`` says which shares the client could decrypt.
    """

    kind: ClassVar[int] = 14
    sender: int
    round: int
    held: Bits
    shares: Rows
