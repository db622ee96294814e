"""Ideal primitives in a group of five elements, for all random choices at the same time.

One run of the state machines sums vectors with an entry for every *world*: entry w of each secret
is its value in world w, and the worlds go through all combinations of the random digits that a test
names. So one run is all runs, and what the server sees in world w is column w of its view.

Key agreement is ideal: a key seed is the row of the seeds that its owner shares with each client.
Masks come from a table, shares from polynomials modulo five, and encryption hands on a ticket.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfw.secure_sums import Primitives, Ring

Digits = npt.NDArray[np.uint8]
TABLE = np.array([2, 0, 4, 1, 3], np.uint8)
"""The generator of masks: seed to mask."""


class Worlds:
    """All values of some random digits; other digits have a fixed value.

    Digits are named ("pair", i, j), ("self", i), and ("seed" or "row", i, degree, j) for the
    coefficients of the polynomials that share client i's self-mask seed and its row of seeds.
    """

    def __init__(self, n: int, enumerated: Sequence[tuple[Any, ...]], fixed: int = 1) -> None:
        self.n = n
        self.count = 5 ** len(enumerated)
        self._place = {name: place for place, name in enumerate(enumerated)}
        self._fixed = fixed
        self.tickets: dict[bytes, bytes] = {}

    def digit(self, *name: Any) -> Digits:
        """Return the values (worlds,) of a digit."""
        if name not in self._place:
            value = (zlib.crc32(repr(name).encode()) + self._fixed) % 5
            return np.full(self.count, value, np.uint8)
        step = 5 ** self._place[name]
        return ((np.arange(self.count) // step) % 5).astype(np.uint8)

    def seed(self, client: int) -> bytes:
        """Return the self-mask seed of a client, as long as a row."""
        return self.digit("self", client).tobytes() + bytes(self.count * (self.n - 1))

    def row(self, client: int) -> bytes:
        """Return the key seed of a client: the seeds that it shares with every other one."""
        columns = [
            bytes(self.count)
            if other == client
            else self.digit("pair", min(client, other), max(client, other)).tobytes()
            for other in range(self.n)
        ]
        return b"".join(columns)


class ToyPrimitives(Primitives):
    """What one client, or the server, computes with."""

    public_bytes = 4
    sealed_bytes = 8
    signature_bytes = 64

    def __init__(self, worlds: Worlds, client: int | None = None) -> None:
        self.worlds, self.client = worlds, client
        self.secret_bytes = self.share_bytes = worlds.n * worlds.count
        self._drawn = 0

    def new_secret(self) -> bytes:
        """Return the value to commit to, then the key seeds and the self-mask seed."""
        self._drawn += 1
        if self.client is None or self._drawn in (1, 3):
            return bytes([self._drawn]) * 32
        return self.worlds.row(self.client) if self._drawn == 2 else self.worlds.seed(self.client)

    def public_key(self, secret: bytes) -> bytes:
        owners = [i for i in range(self.worlds.n) if self.worlds.row(i) == secret]
        return bytes([0, 0, 0, owners[0] if owners else 255])

    def agree(self, secret: bytes, public: bytes, context: bytes) -> bytes:
        start = public[3] * self.worlds.count
        return secret[start : start + self.worlds.count]

    def mask(self, seed: bytes, context: bytes, ring: Ring, count: int) -> Any:
        return TABLE[np.frombuffer(seed[:count], np.uint8)].astype(ring.dtype)

    def split(self, secret: bytes, threshold: int, count: int) -> list[bytes]:
        worlds = self.worlds
        kind = "seed" if secret == worlds.seed(self.client or 0) else "row"
        values = np.frombuffer(secret, np.uint8).reshape(worlds.n, worlds.count)
        shares = []
        for position in range(1, count + 1):
            share = values.copy()
            for degree in range(1, threshold):
                for j in range(worlds.n):
                    coefficient = worlds.digit(kind, self.client, degree, j)
                    share[j] = (share[j] + coefficient * (position**degree % 5)) % 5
            shares.append(share.tobytes())
        return shares

    def combine(self, shares: Mapping[int, bytes]) -> bytes:
        total = np.zeros(self.share_bytes, np.uint8)
        for position, share in shares.items():
            weight = 1
            for other in shares:
                if other != position:
                    weight = weight * other * pow(other - position, -1, 5) % 5
            total = (total + weight * np.frombuffer(share, np.uint8)) % 5
        return total.astype(np.uint8).tobytes()

    def seal(self, secret: bytes, public: bytes, context: bytes, plain: bytes) -> bytes:
        ticket = len(self.worlds.tickets).to_bytes(8, "big")
        self.worlds.tickets[ticket] = plain
        return ticket

    def unseal(self, secret: bytes, public: bytes, context: bytes, sealed: bytes) -> bytes:
        return self.worlds.tickets[sealed]

    def public_identity(self, identity: bytes) -> bytes:
        return identity

    def sign(self, identity: bytes, statement: bytes) -> bytes:
        return bytes(64)

    def verify(self, public: bytes, signature: bytes, statement: bytes) -> None:
        pass

    def check_value(self, secret: bytes, context: bytes) -> bytes:
        return bytes(32)
