"""Bits on the wire: whole numbers, index sets and permutations in nearly the fewest bits.

An atom drawn from ``count`` possibilities is a whole number below ``count`` and takes
``ceil(log2(count) / 8)`` bytes. Index sets (k of p) use one of two codes, chosen from (p, k) alone so that both
ends agree without a header:

- *enumerative*, for small sets: the rank of the set in the combinatorial number system (Cover, 1973), exactly
  ``ceil(log2 C(p, k))`` bits whatever the set;
- *Rice*, for large ones, where big-integer arithmetic would be slow: gaps between neighbours, quotients in unary,
  then the remainders; less than 0.1 bits an index above log2 C(p, k) for sets drawn uniformly.

A set with more than half of the indices is coded as its complement.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedfw.errors import AtomError

Indices = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]

_ENUMERATIVE_BITS = 1024  # above this the big-integer search of the enumerative code takes over 10 ms


class Reader:
    """Reads bytes from the front; running out of them is an `AtomError`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise AtomError(f"the bytes end {count - len(piece)} too early, at {len(self._data)}")
        self._at += count
        return piece

    def peek(self, most: int) -> bytes:
        """Up to ``most`` bytes, not consumed."""
        return self._data[self._at : self._at + most]

    def finish(self) -> None:
        """Refuse trailing bytes."""
        if self._at != len(self._data):
            raise AtomError(f"{len(self._data) - self._at} bytes left over after the atom")


def byte_width(count: int) -> int:
    """Bytes that hold any whole number below ``count``."""
    return ((count - 1).bit_length() + 7) // 8


def write_integer(number: int, count: int) -> bytes:
    """``number`` in ``range(count)`` as `byte_width` bytes."""
    return number.to_bytes(byte_width(count), "big")


def read_integer(reader: Reader, count: int) -> int:
    """The inverse of `write_integer`; a number not below ``count`` is an `AtomError`."""
    number = int.from_bytes(reader.take(byte_width(count)), "big")
    if number >= count:
        raise AtomError(f"the number {number:.6g} is not below {count:.6g}" if count < 1 << 64 else "number too large")
    return number


def pack_bits(bits: Bits) -> bytes:
    """0/1 values, first one in the highest bit, padded with zeros."""
    return np.packbits(bits).tobytes()


def read_bits(reader: Reader, count: int) -> Bits:
    """``count`` bits; padding that is not zero is an `AtomError`."""
    bits = np.unpackbits(np.frombuffer(reader.take((count + 7) // 8), np.uint8))
    if bits[count:].any():
        raise AtomError("padding bits are not zero")
    return bits[:count]


# --- index sets -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _subsets(p: int, k: int) -> int | None:
    """C(p, k) when the enumerative code is used for it, else None."""
    bits = (math.lgamma(p + 1) - math.lgamma(k + 1) - math.lgamma(p - k + 1)) / math.log(2)
    if bits > 2 * _ENUMERATIVE_BITS:  # clearly too many: no need for the number itself
        return None
    count = math.comb(p, k)
    return count if count.bit_length() <= _ENUMERATIVE_BITS else None


def _rank(indices: Indices) -> int:
    """Rank of an ascending index set in the combinatorial number system: sum of C(c_j, j + 1)."""
    return sum(math.comb(int(c), j + 1) for j, c in enumerate(indices))


_WALK = 32
"""Up to this many places for each index it is faster to walk down the binomials than to search for each one."""


def _unrank(rank: int, p: int, k: int) -> Indices:
    indices = np.empty(k, np.int64)
    if p <= _WALK * k:
        place, count = p - 1, math.comb(p - 1, k)  # count is C(place, j)
        for j in range(k, 0, -1):
            while count > rank:
                count, place = count * (place - j) // place, place - 1
            indices[j - 1] = place
            rank -= count
            if place:
                count, place = count * j // place, place - 1
        return indices
    high = p
    for j in range(k, 0, -1):
        low = j - 1  # C(low, j) = 0 <= rank always holds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if math.comb(middle, j) <= rank else (low, middle)
        indices[j - 1] = low
        rank -= math.comb(low, j)
        high = low
    return indices


def _rice_parameter(p: int, k: int) -> int:
    """Bits of a gap's remainder: about log2(p / k), in whole numbers so that every machine agrees."""
    return (p * 481 // (1000 * max(k, 1))).bit_length()


def _rice_encode(indices: Indices, p: int) -> Bits:
    k = len(indices)
    low = _rice_parameter(p, k)
    gaps = np.diff(indices, prepend=-1) - 1
    ends = np.cumsum((gaps >> low) + 1) - 1
    unary = np.zeros(ends[-1] + 1 if k else 0, np.uint8)
    unary[ends] = 1
    remainders = (gaps[:, None] >> np.arange(low - 1, -1, -1)) & 1
    return np.concatenate([unary, remainders.astype(np.uint8).ravel()])


def _rice_decode(reader: Reader, p: int, k: int, extra: int) -> tuple[Indices, Bits]:
    low = _rice_parameter(p, k)
    longest = k + (p >> low) + k * low + extra
    bits = np.unpackbits(np.frombuffer(reader.peek(longest // 8 + 1), np.uint8))
    ends = np.flatnonzero(bits)[:k]
    if len(ends) < k:
        raise AtomError(f"expected {k} indices, found {len(ends)}")
    unary = int(ends[-1]) + 1 if k else 0
    bits = read_bits(reader, unary + k * low + extra)
    quotients = np.diff(ends, prepend=-1) - 1
    remainders = bits[unary : unary + k * low].reshape(k, low).astype(np.int64) @ (1 << np.arange(low)[::-1])
    indices = np.cumsum((quotients << low) + remainders + 1) - 1
    if k and indices[-1] >= p:
        raise AtomError(f"index {indices[-1]} is not below {p}")
    return indices.astype(np.int64), bits[unary + k * low :]


def _complement(indices: Indices, p: int) -> Indices:
    absent = np.ones(p, bool)
    absent[indices] = False
    return np.flatnonzero(absent)


def write_index_set(indices: Indices, p: int, extra: Bits) -> bytes:
    """An ascending set of indices below ``p``, followed by ``extra`` bits (the signs, say) in the same padding."""
    k = len(indices)
    if 2 * k > p:
        indices = _complement(indices, p)
    count = _subsets(p, len(indices))
    if count is None:
        return pack_bits(np.concatenate([_rice_encode(indices, p), extra]))
    tail = int.from_bytes(pack_bits(extra), "big") >> (-len(extra) % 8)
    return write_integer(_rank(indices) << len(extra) | tail, count << len(extra))


def read_index_set(reader: Reader, p: int, k: int, extra: int) -> tuple[Indices, Bits]:
    """The inverse of `write_index_set`: the ``k`` indices and the ``extra`` bits."""
    coded = k if 2 * k <= p else p - k
    count = _subsets(p, coded)
    if count is None:
        indices, tail = _rice_decode(reader, p, coded, extra)
    else:
        number = read_integer(reader, count << extra)
        indices = _unrank(number >> extra, p, coded)
        low = (number & ((1 << extra) - 1)) << (-extra % 8)
        tail = read_bits(Reader(low.to_bytes((extra + 7) // 8, "big")), extra)
    return (indices if coded == k else _complement(indices, p)), tail


def fixed_nbytes(k: int, p: int, extra: int) -> int | None:
    """Length of `write_index_set` for any ``k`` indices, where it does not depend on which."""
    count = _subsets(p, min(k, p - k))
    return None if count is None else byte_width(count << extra)


def index_set_nbytes(indices: Indices, p: int, extra: int) -> int:
    """Length of `write_index_set` without writing; ``indices`` is a stack (n, k), and the n lengths are summed."""
    n, k = indices.shape
    coded = min(k, p - k)
    fixed = fixed_nbytes(k, p, extra)
    if fixed is not None:
        return int(n * fixed)
    if coded != k:
        indices = np.stack([_complement(row, p) for row in indices])
    low = _rice_parameter(p, coded)
    gaps = indices - 1
    gaps[:, 0] += 1
    gaps[:, 1:] -= indices[:, :-1]
    bits = (gaps >> low).sum(1) + coded * (low + 1) + extra
    return int(((bits + 7) // 8).sum())


# --- permutations -----------------------------------------------------------------------------------------------


def write_permutation(permutation: Indices) -> bytes:
    """A permutation as its Lehmer code in the factorial number system: ceil(log2 n! / 8) bytes."""
    remaining = list(range(len(permutation)))
    number, count = 0, 1
    for value in permutation.tolist():
        digit = remaining.index(value)
        number = number * len(remaining) + digit
        count *= len(remaining)
        remaining.pop(digit)
    return write_integer(number, count)


def read_permutation(reader: Reader, n: int) -> Indices:
    """The inverse of `write_permutation`."""
    number = read_integer(reader, math.factorial(n))
    digits = []
    for radix in range(1, n + 1):
        number, digit = divmod(number, radix)
        digits.append(digit)
    remaining = list(range(n))
    return np.array([remaining.pop(digit) for digit in reversed(digits)], np.int64)


def permutation_nbytes(n: int) -> int:
    """Length of `write_permutation`."""
    return byte_width(math.factorial(n))
