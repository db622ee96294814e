"""Vectors of integers modulo a number, and their encoding in the fewest bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfw.secure_sums.errors import MalformedMessageError, RangeError

Residues = npt.NDArray[np.unsignedinteger[Any]]
"""Integers modulo m, in the smallest unsigned dtype that the ring uses, of shape (p,)."""

MOST_BITS = 62
_CHUNK = 1 << 16
"""Numbers that are packed at a time; a multiple of eight, so that chunks end at whole bytes."""


@dataclass(frozen=True)
class Ring:
    """The integers modulo ``modulus``.

    Parameters
    ----------
    modulus : int
        From 2 to 2^62. A power of two is what `for_sum` chooses.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.secure_sums import Ring
    >>> ring = Ring.for_sum(count=10, span=2)
    >>> ring.modulus, ring.bits
    (32, 5)
    >>> ring.unpack(ring.pack(ring.residues(np.array([1, 31, 7]))), 3).tolist()
    [1, 31, 7]
    """

    modulus: int

    def __post_init__(self) -> None:
        if not 2 <= self.modulus <= 1 << MOST_BITS:
            raise RangeError(f"modulus {self.modulus}, expected 2 to 2^{MOST_BITS}")

    @classmethod
    def for_sum(cls, count: int, span: int) -> Ring:
        """Return the ring with the fewest bits that holds any sum of ``count`` numbers from 0 to
        ``span``.

        Parameters
        ----------
        count : int
            The number of terms.
        span : int
            The largest term.

        Returns
        -------
        Ring
            Its modulus is the smallest power of two above ``count * span``.
        """
        return cls(1 << max(1, (count * span).bit_length()))

    @property
    def bits(self) -> int:
        """Return the bits of one number."""
        return (self.modulus - 1).bit_length()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of residues."""
        if not self._wraps:
            return np.dtype(np.uint64)  # holds a sum of two residues
        for width in (8, 16, 32):
            if self.bits <= width:
                return np.dtype(f"u{width // 8}")
        return np.dtype(np.uint64)

    @property
    def _wraps(self) -> bool:
        """Return whether overflow of the dtype leaves the residues right."""
        return self.modulus & (self.modulus - 1) == 0

    def residues(self, values: npt.NDArray[Any]) -> Residues:
        """Return integers (p,) of any sign modulo the modulus, as a new array."""
        return np.mod(values.astype(np.int64), self.modulus).astype(self.dtype)

    def add(self, total: Residues, term: Residues) -> None:
        """Add ``term`` to ``total``, both (p,), in place."""
        total += term
        self._reduce(total)

    def subtract(self, total: Residues, term: Residues) -> None:
        """Subtract ``term`` from ``total``, both (p,), in place."""
        if self._wraps:
            total -= term
        else:
            total += self.dtype.type(self.modulus) - term
        self._reduce(total)

    def _reduce(self, total: Residues) -> None:
        if self._wraps:
            total &= self.dtype.type(self.modulus - 1)
        else:
            total %= self.dtype.type(self.modulus)

    def packed_nbytes(self, count: int) -> int:
        """Return the bytes of ``count`` packed numbers."""
        return -(-count * self.bits // 8)

    def pack(self, values: Residues) -> bytes:
        """Return residues (p,) as bytes.

        The first number stands in the highest bits, and the last byte is padded with zeros.
        """
        width = 8 * self.dtype.itemsize
        big_endian = values.astype(self.dtype.newbyteorder(">"))
        if self.bits == width:
            return big_endian.tobytes()
        pieces = []
        for start in range(0, len(values), _CHUNK):
            digits = np.unpackbits(big_endian[start : start + _CHUNK].view(np.uint8))
            digits = digits.reshape(-1, width)[:, width - self.bits :]
            pieces.append(np.packbits(digits).tobytes())
        return b"".join(pieces)

    def check(self, data: bytes, count: int) -> None:
        """Refuse bytes that cannot be ``count`` packed numbers, without unpacking them.

        Raises
        ------
        MalformedMessageError
            If the length is wrong, or the padding is not zero.
        """
        if len(data) != self.packed_nbytes(count):
            raise MalformedMessageError(
                f"{len(data)} bytes of numbers, expected {self.packed_nbytes(count)}"
            )
        padding = 8 * len(data) - count * self.bits
        if padding and data[-1] & ((1 << padding) - 1):
            raise MalformedMessageError("padding bits of the numbers are not zero")

    def unpack(self, data: bytes, count: int) -> Residues:
        """Return ``count`` residues from the bytes of `pack`.

        Raises
        ------
        MalformedMessageError
            If the length is wrong, the padding is not zero, or a number is not below the modulus.
        """
        self.check(data, count)
        values = np.empty(count, self.dtype)
        for start in range(0, count, _CHUNK):
            some = min(_CHUNK, count - start)
            at = start * self.bits // 8
            piece = data[at : at + self.packed_nbytes(some)]
            values[start : start + some] = self._unpack_chunk(piece, some)
        if count and int(values.max()) >= self.modulus:
            raise MalformedMessageError(f"a number is not below the modulus {self.modulus}")
        return values

    def _unpack_chunk(self, data: bytes, count: int) -> Residues:
        width = 8 * self.dtype.itemsize
        digits = np.unpackbits(np.frombuffer(data, np.uint8))
        full = np.zeros((count, width), np.uint8)
        full[:, width - self.bits :] = digits[: count * self.bits].reshape(count, self.bits)
        return np.packbits(full).view(self.dtype.newbyteorder(">")).astype(self.dtype)
