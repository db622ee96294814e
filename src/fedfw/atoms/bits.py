"""Whole numbers and bits as bytes.

An atom that is one of ``count`` possible ones is a whole number below ``count`` and takes
``ceil(log2(count) / 8)`` bytes.
"""

import numpy as np
import numpy.typing as npt

from fedfw.errors import AtomError

Bits = npt.NDArray[np.uint8]


class Reader:
    """Reads bytes from the front of a buffer.

    Parameters
    ----------
    data : bytes
        The buffer.

    Examples
    --------
    >>> from fedfw.atoms.bits import Reader
    >>> reader = Reader(b"abc")
    >>> reader.take(2), reader.peek(5)
    (b'ab', b'c')
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """Consume the next bytes.

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        bytes
            These bytes.

        Raises
        ------
        AtomError
            If fewer bytes are left.
        """
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise AtomError(
                f"the data end after {len(self._data)} bytes, {count - len(piece)} too early"
            )
        self._at += count
        return piece

    def peek(self, most: int) -> bytes:
        """Return the next bytes, which are not consumed.

        Parameters
        ----------
        most : int
            How many, at most.

        Returns
        -------
        bytes
            These bytes, fewer if the buffer ends before.
        """
        return self._data[self._at : self._at + most]

    def finish(self) -> None:
        """Check that all bytes have been consumed.

        Raises
        ------
        AtomError
            If some are left.
        """
        if self._at != len(self._data):
            raise AtomError(f"{len(self._data) - self._at} bytes left over after the atom")


def byte_width(count: int) -> int:
    """Return the number of bytes that hold any whole number from 0 to ``count - 1``.

    Parameters
    ----------
    count : int
        How many numbers are possible; at least 1.

    Returns
    -------
    int
        The number of bytes.

    Examples
    --------
    >>> from fedfw.atoms.bits import byte_width
    >>> byte_width(256), byte_width(257)
    (1, 2)
    """
    return ((count - 1).bit_length() + 7) // 8


def write_integer(number: int, count: int) -> bytes:
    """Return a whole number as bytes.

    Parameters
    ----------
    number : int
        From 0 to ``count - 1``.
    count : int
        How many numbers are possible.

    Returns
    -------
    bytes
        ``byte_width(count)`` bytes, big-endian.

    Examples
    --------
    >>> from fedfw.atoms.bits import Reader, read_integer, write_integer
    >>> read_integer(Reader(write_integer(700, 1000)), 1000)
    700
    """
    return number.to_bytes(byte_width(count), "big")


def read_integer(reader: Reader, count: int) -> int:
    """Decode a whole number; the inverse of `write_integer`.

    Parameters
    ----------
    reader : Reader
        The bytes.
    count : int
        How many numbers are possible.

    Returns
    -------
    int
        A number from 0 to ``count - 1``.

    Raises
    ------
    AtomError
        If the number is not below ``count``, or there are too few bytes.

    Examples
    --------
    >>> from fedfw.atoms.bits import Reader, read_integer
    >>> read_integer(Reader(bytes([2, 188])), 1000)
    700
    """
    number = int.from_bytes(reader.take(byte_width(count)), "big")
    if number >= count:
        # Huge whole numbers cannot be formatted as floats.
        raise AtomError(
            f"the number {number:.6g} is not below {count:.6g}"
            if count < 1 << 64
            else "number too large"
        )
    return number


def pack_bits(bits: Bits) -> bytes:
    """Return bits as bytes: the first bit is the highest one, and the last byte is padded with
    zeros.

    Parameters
    ----------
    bits : array
        Zeros and ones, uint8, of shape (count,).

    Returns
    -------
    bytes
        The encoding.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.atoms.bits import pack_bits
    >>> pack_bits(np.array([1, 0, 1], np.uint8)).hex()
    'a0'
    """
    return np.packbits(bits).tobytes()


def read_bits(reader: Reader, count: int) -> Bits:
    """Decode bits; the inverse of `pack_bits`.

    Parameters
    ----------
    reader : Reader
        The bytes.
    count : int
        How many bits.

    Returns
    -------
    array
        Zeros and ones, uint8, of shape (count,).

    Raises
    ------
    AtomError
        If the padding is not zero, or there are too few bytes.

    Examples
    --------
    >>> from fedfw.atoms.bits import Reader, read_bits
    >>> read_bits(Reader(bytes.fromhex("a0")), 3).tolist()
    [1, 0, 1]
    """
    bits = np.unpackbits(np.frombuffer(reader.take((count + 7) // 8), np.uint8))
    if bits[count:].any():
        raise AtomError("padding bits are not zero")
    return bits[:count]


def pack_numbers(numbers: Bits, bits: int) -> bytes:
    """Return small whole numbers as bytes: the first number stands in the highest bits, the last
    byte is padded with zeros.

    Parameters
    ----------
    numbers : array
        Numbers below ``2**bits``, uint8, of shape (count,).
    bits : int
        Bits of one number: 1, 2, 4 or 8.

    Returns
    -------
    bytes
        ``packed_nbytes(count, bits)`` bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from fedfw.atoms.bits import pack_numbers
    >>> pack_numbers(np.array([1, 15, 7], np.uint8), 4).hex()
    '1f70'
    """
    return pack_bits(np.unpackbits(numbers[:, None], axis=1)[:, 8 - bits :])


def read_numbers(reader: Reader, count: int, bits: int) -> Bits:
    """Decode small whole numbers; the inverse of `pack_numbers`.

    Parameters
    ----------
    reader : Reader
        The bytes.
    count : int
        How many numbers.
    bits : int
        Bits of one number: 1, 2, 4 or 8.

    Returns
    -------
    array
        Numbers below ``2**bits``, uint8, of shape (count,).

    Raises
    ------
    AtomError
        If there are too few bytes, or a bit of the padding is set.

    Examples
    --------
    >>> from fedfw.atoms.bits import Reader, read_numbers
    >>> read_numbers(Reader(bytes.fromhex("1f70")), 3, 4).tolist()
    [1, 15, 7]
    """
    digits = read_bits(reader, count * bits).reshape(count, bits)
    return np.packbits(digits, axis=1)[:, 0] >> np.uint8(8 - bits)


def packed_nbytes(count: int, bits: int) -> int:
    """Return the length of what `pack_numbers` makes of ``count`` numbers.

    Parameters
    ----------
    count : int
        How many numbers.
    bits : int
        Bits of one number: 1, 2, 4 or 8.

    Returns
    -------
    int
        The number of bytes.

    Examples
    --------
    >>> from fedfw.atoms.bits import packed_nbytes
    >>> packed_nbytes(7850, 4)
    3925
    """
    return -(-count * bits // 8)
