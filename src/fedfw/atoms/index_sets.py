"""Index sets and permutations as bytes, in nearly the fewest bits.

A set of k of p indices uses one of two codes. Which one depends on p and k alone, so that sender
and receiver agree without a header:

- The *enumerative* code, for small sets, is the rank of the set in the combinatorial number system
  (Cover, 1973). It takes exactly ``ceil(log2 C(p, k))`` bits for every set.
- The *Rice* code, for large sets, where arithmetic with big integers would be slow, encodes the
  gaps between neighbouring indices: first all quotients in unary, then all remainders. For sets
  drawn uniformly it takes less than 0.1 bits per index more than log2 C(p, k).

A set with more than half of the indices is encoded as its complement.
"""

import math
from bisect import bisect_right
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.atoms.bits import (
    Bits,
    Reader,
    byte_width,
    pack_bits,
    read_bits,
    read_integer,
    write_integer,
)
from fedfw.errors import AtomError

Indices = npt.NDArray[np.int64]

# Above this the big-integer search of the enumerative code takes over 10 ms.
_ENUMERATIVE_BITS = 1024


@lru_cache(maxsize=64)
def _subsets(p: int, k: int) -> int | None:
    """Return the number of sets of k of p indices, C(p, k), if they are coded by their rank; None
    if there are so many that they are coded by gaps (Rice code).
    """
    bits = (math.lgamma(p + 1) - math.lgamma(k + 1) - math.lgamma(p - k + 1)) / math.log(2)
    if bits > 2 * _ENUMERATIVE_BITS:  # clearly too many, so the exact number is not needed
        return None
    count = math.comb(p, k)
    if count.bit_length() <= _ENUMERATIVE_BITS:
        return count
    return None


def _rank(indices: Indices) -> int:
    """Rank of an ascending index set in the combinatorial number system: sum of C(c_j, j + 1)."""
    return sum(math.comb(int(c), j + 1) for j, c in enumerate(indices))


def _last_below(end: int, j: int, rank: int) -> int:
    """Return the last index c below ``end`` with C(c, j) <= rank; C(j - 1, j) = 0 always is."""
    return bisect_right(range(end), rank, key=lambda c: math.comb(c, j)) - 1


def _unrank(rank: int, p: int, k: int) -> Indices:
    """Return the ascending indices i_1 < ... < i_k below p with the rank ``sum_j C(i_j, j)``; the
    inverse of `_rank`.
    """
    indices = np.empty(k, np.int64)
    index = p
    for j in range(k, 0, -1):  # i_j is the largest index with C(i_j, j) <= what is left of the rank
        index = _last_below(index, j, rank)
        indices[j - 1] = index
        rank -= math.comb(index, j)
    return indices


def _rice_parameter(p: int, k: int) -> int:
    """Return the bits of a gap's remainder, about log2(p / k), in integer arithmetic so that all
    machines agree.
    """
    return (p * 481 // (1000 * k)).bit_length()


def _rice_encode(indices: Indices, p: int) -> Bits:
    """Return the bits of the Rice code of an ascending index set."""
    k = len(indices)
    low = _rice_parameter(p, k)
    gaps = np.diff(indices, prepend=-1) - 1  # indices left out before each
    # Quotients by 2^low come first, in unary (zeros, then a one), and then all remainders, in
    # ``low`` bits each.
    ends = np.cumsum((gaps >> low) + 1) - 1
    unary = np.zeros(ends[-1] + 1, np.uint8)
    unary[ends] = 1
    remainders = (gaps[:, None] >> np.arange(low - 1, -1, -1)) & 1
    return np.concatenate([unary, remainders.astype(np.uint8).ravel()])


def _rice_decode(reader: Reader, p: int, k: int, extra: int) -> tuple[Indices, Bits]:
    """Return the ``k`` indices of a Rice code and the ``extra`` bits that follow it."""
    low = _rice_parameter(p, k)
    # The quotients of k gaps add up to at most p / 2^low: no code has more bits than this.
    longest = k + (p >> low) + k * low + extra
    bits = np.unpackbits(np.frombuffer(reader.peek(longest // 8 + 1), np.uint8))
    ends = np.flatnonzero(bits)[:k]  # a one ends each of the k quotients in unary
    if len(ends) < k:
        raise AtomError(f"expected {k} indices, found {len(ends)}")
    unary = int(ends[-1]) + 1
    bits = read_bits(reader, unary + k * low + extra)
    quotients = np.diff(ends, prepend=-1) - 1
    remainders = bits[unary : unary + k * low].reshape(k, low).astype(np.int64) @ (
        1 << np.arange(low)[::-1]
    )
    indices = np.cumsum((quotients << low) + remainders + 1) - 1
    if indices[-1] >= p:
        raise AtomError(f"index {indices[-1]} is not below {p}")
    return indices.astype(np.int64), bits[unary + k * low :]


def _complement(indices: Indices, p: int) -> Indices:
    """Return the indices below p that are not in ``indices``, ascending."""
    absent = np.ones(p, bool)
    absent[indices] = False
    return np.flatnonzero(absent)


def write_index_set(indices: Indices, p: int, extra: Bits) -> bytes:
    """Return a set of indices as bytes, followed by some more bits.

    Parameters
    ----------
    indices : array
        The indices, int64, of shape (k,), ascending.
    p : int
        All indices are below p.
    extra : array
        Further bits, such as signs, uint8; they share the padding of the last byte with the index
        set.

    Returns
    -------
    bytes
        The encoding.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.atoms.index_sets import write_index_set
    >>> len(write_index_set(np.array([3, 70]), 100, np.array([1, 0], np.uint8)))
    2
    """
    k = len(indices)
    if 2 * k > p:  # the indices that are not in the set are fewer
        indices = _complement(indices, p)
    count = _subsets(p, len(indices))
    if count is None:
        return pack_bits(np.concatenate([_rice_encode(indices, p), extra]))
    # One whole number: the rank, followed by the further bits without the padding of their last
    # byte.
    tail = int.from_bytes(pack_bits(extra), "big") >> (-len(extra) % 8)
    return write_integer(_rank(indices) << len(extra) | tail, count << len(extra))


def read_index_set(reader: Reader, p: int, k: int, extra: int) -> tuple[Indices, Bits]:
    """Decode a set of indices and some more bits; the inverse of `write_index_set`.

    Parameters
    ----------
    reader : Reader
        The bytes.
    p : int
        All indices are below p.
    k : int
        The number of indices.
    extra : int
        The number of further bits.

    Returns
    -------
    tuple of array
        The indices, int64, of shape (k,), ascending, and the further bits, uint8, of shape
        (extra,).

    Raises
    ------
    AtomError
        If the bytes are not the encoding of such a set.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.atoms.index_sets import Reader, read_index_set, write_index_set
    >>> data = write_index_set(np.array([3, 70]), 100, np.array([1, 0], np.uint8))
    >>> indices, signs = read_index_set(Reader(data), p=100, k=2, extra=2)
    >>> indices.tolist(), signs.tolist()
    ([3, 70], [1, 0])
    """
    if 2 * k <= p:
        coded = k
    else:
        coded = p - k
    count = _subsets(p, coded)
    if count is None:
        indices, tail = _rice_decode(reader, p, coded, extra)
    else:
        # One whole number: the rank, followed by the further bits, which are padded to bytes here.
        number = read_integer(reader, count << extra)
        indices = _unrank(number >> extra, p, coded)
        low = (number & ((1 << extra) - 1)) << (-extra % 8)
        tail = read_bits(Reader(low.to_bytes((extra + 7) // 8, "big")), extra)
    return (indices if coded == k else _complement(indices, p)), tail


@lru_cache(maxsize=1024)  # every round asks for the same few
def fixed_nbytes(k: int, p: int, extra: int) -> int | None:
    """Return the length of `write_index_set` where it does not depend on the indices.

    Parameters
    ----------
    k : int
        The number of indices.
    p : int
        All indices are below p.
    extra : int
        The number of further bits.

    Returns
    -------
    int or None
        The number of bytes; None if it depends on the indices.

    Examples
    --------
    >>> from fedfw.atoms.index_sets import fixed_nbytes
    >>> fixed_nbytes(79, 7850, 79), fixed_nbytes(1000, 100_000, 0)
    (90, None)
    """
    count = _subsets(p, min(k, p - k))
    if count is None:
        return None
    return byte_width(count << extra)


def index_set_nbytes(indices: Indices | Tensor, p: int, extra: int) -> int:
    """Return the length of `write_index_set`, computed without writing; for several sets the sum of
    the lengths.

    Parameters
    ----------
    indices : array or Tensor
        The indices of n sets, int64, of shape (n, k), ascending in each row.
    p : int
        All indices are below p.
    extra : int
        The number of further bits of each set.

    Returns
    -------
    int
        The number of bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.atoms.index_sets import index_set_nbytes
    >>> index_set_nbytes(np.array([[3, 70], [4, 5]]), 100, 2)
    4
    """
    n, k = indices.shape
    coded = min(k, p - k)  # of a large set the complement is coded
    fixed = fixed_nbytes(k, p, extra)
    if fixed is not None:  # does not need the indices, which may be on a GPU
        return int(n * fixed)
    indices = torch.as_tensor(indices).cpu().numpy()
    if coded != k:
        indices = np.stack([_complement(row, p) for row in indices])
    low = _rice_parameter(p, coded)
    gaps = np.diff(indices, axis=1, prepend=-1) - 1
    # Quotients in unary with a one at their end, remainders of ``low`` bits, and the further bits.
    bits = (gaps >> low).sum(1) + coded * (low + 1) + extra
    return int(((bits + 7) // 8).sum())


def write_permutation(permutation: Indices) -> bytes:
    """Return a permutation of 0, ..., m - 1 as bytes.

    Parameters
    ----------
    permutation : array
        Integers of shape (m,).

    Returns
    -------
    bytes
        Its Lehmer code in the factorial number system, which takes ``ceil(log2(m!) / 8)`` bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.atoms.index_sets import write_permutation
    >>> write_permutation(np.array([2, 0, 1])).hex()
    '04'
    """
    # A digit is the place of a value among those that have not come yet; m of them are possible for
    # the first, m - 1 for the second, and so on.
    remaining = list(range(len(permutation)))
    rank = 0
    for value in permutation.tolist():
        digit = remaining.index(value)
        rank = rank * len(remaining) + digit
        remaining.pop(digit)
    return write_integer(rank, math.factorial(len(permutation)))


def read_permutation(reader: Reader, n: int) -> Indices:
    """Decode a permutation; the inverse of `write_permutation`.

    Parameters
    ----------
    reader : Reader
        The bytes.
    n : int
        How many numbers are permuted.

    Returns
    -------
    array
        A permutation of 0, ..., n - 1, int64, of shape (n,).

    Raises
    ------
    AtomError
        If the bytes are not the encoding of such a permutation.

    Examples
    --------
    >>> from fedfw.atoms.index_sets import Reader, read_permutation
    >>> read_permutation(Reader(bytes([4])), 3).tolist()
    [2, 0, 1]
    """
    rank = read_integer(reader, math.factorial(n))
    digits = []  # the last digit, of which one value is possible, first
    for radix in range(1, n + 1):
        rank, digit = divmod(rank, radix)
        digits.append(digit)
    remaining = list(range(n))
    return np.array([remaining.pop(digit) for digit in reversed(digits)], np.int64)
