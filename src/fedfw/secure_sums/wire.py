"""Messages as bytes: a frame, and fields whose lengths are checked before they are read.

A frame is four letters, a version and the kind of the message, a byte each. A field is an integer
of eight bytes, bytes with their length in front, a list of bits with its length, or rows of equal
width with their number and their width. Integers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np

from fedfw.secure_sums.errors import MalformedMessageError

_MAGIC = b"FSUM"
_VERSION = 1
_U64 = struct.Struct(">Q")
_FRAME = len(_MAGIC) + 2

Rows = tuple[bytes, ...]
"""Byte strings of equal length."""
Bits = tuple[bool, ...]


class Reader:
    """Reads fields from the front of a buffer, and never beyond its end."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        left = len(self._data) - self._at
        if count > left:
            raise MalformedMessageError(f"a field of {count} bytes, but {left} bytes are left")
        self._at += count
        return self._data[self._at - count : self._at]

    def integer(self) -> int:
        """Return the next integer."""
        number: int = _U64.unpack(self.take(_U64.size))[0]
        return number

    def blob(self) -> bytes:
        """Return the next bytes field."""
        return self.take(self.integer())

    def bits(self) -> Bits:
        """Return the next list of bits."""
        count = self.integer()
        packed = self.take((count + 7) // 8)
        digits = np.unpackbits(np.frombuffer(packed, np.uint8))
        if digits[count:].any():
            raise MalformedMessageError("padding bits are not zero")
        return tuple(digits[:count].astype(bool).tolist())

    def rows(self) -> Rows:
        """Return the next rows."""
        count, width = self.integer(), self.integer()
        if (width == 0) != (count == 0):
            raise MalformedMessageError(f"{count} rows of {width} bytes")
        data = self.take(count * width)
        return tuple(data[at : at + width] for at in range(0, len(data), width or 1))

    def finish(self) -> None:
        """Refuse bytes that are left over."""
        if self._at != len(self._data):
            raise MalformedMessageError(f"{len(self._data) - self._at} bytes are left over")


def write_integer(value: int) -> bytes:
    """Return an integer from 0 to 2^64 - 1 as eight bytes."""
    return _U64.pack(value)


def write_blob(value: bytes) -> bytes:
    """Return bytes with their length in front."""
    return _U64.pack(len(value)) + value


def write_bits(value: Sequence[bool]) -> bytes:
    """Return a list of bits, packed, with its length in front."""
    return _U64.pack(len(value)) + np.packbits(np.array(value, bool)).tobytes()


def write_rows(value: Sequence[bytes]) -> bytes:
    """Return rows of equal width with their number and width in front."""
    width = len(value[0]) if value else 0
    if any(len(row) != width for row in value):
        raise ValueError("rows of a message differ in length")
    return _U64.pack(len(value)) + _U64.pack(width) + b"".join(value)


def tagged(purpose: str, *parts: bytes | int) -> bytes:
    """Return one byte string that no other purpose and no other parts have.

    It is what signatures, hashes and key derivations are bound to.
    """
    pieces = [b"fedfw secure sums 1", write_blob(purpose.encode())]
    for part in parts:
        if isinstance(part, int):
            pieces.append(b"i" + write_integer(part))
        else:
            pieces.append(b"b" + write_blob(part))
    return b"".join(pieces)


_WRITERS = {
    "int": write_integer,
    "bytes": write_blob,
    "Bits": write_bits,
    "Rows": write_rows,
}
_READERS = {
    "int": Reader.integer,
    "bytes": Reader.blob,
    "Bits": Reader.bits,
    "Rows": Reader.rows,
}


@dataclass(frozen=True)
class Message:
    """The base class of messages: a dataclass whose annotations (int, bytes, Bits, Rows) name the
    encodings of its fields.
    """

    kind: ClassVar[int]

    def to_bytes(self) -> bytes:
        """Return the encoded message.

        Returns
        -------
        bytes
            The frame and all fields.
        """
        pieces = [_MAGIC, bytes([_VERSION, self.kind])]
        for field in fields(self):
            write = _WRITERS[str(field.type)]
            pieces.append(write(getattr(self, field.name)))  # type: ignore[operator]
        return b"".join(pieces)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the message that `to_bytes` encoded.

        Parameters
        ----------
        data : bytes
            What was received.

        Returns
        -------
        Message
            With all fields decoded; their meaning is checked by the one who uses them.

        Raises
        ------
        MalformedMessageError
            If the bytes are not exactly one message of this kind.
        """
        if kind_of(data) != cls.kind:
            raise MalformedMessageError(
                f"a message of kind {kind_of(data)}, expected {cls.kind} ({cls.__name__})"
            )
        reader = Reader(data, _FRAME)
        values = {field.name: _READERS[str(field.type)](reader) for field in fields(cls)}
        reader.finish()
        return cls(**values)


def kind_of(data: bytes) -> int:
    """Return the kind of an encoded message.

    Raises
    ------
    MalformedMessageError
        If the bytes do not begin with a frame of this version.
    """
    if len(data) < _FRAME or data[:4] != _MAGIC or data[4] != _VERSION:
        raise MalformedMessageError("the bytes do not begin with a frame of this version")
    return data[5]


def require_rows(rows: Rows, count: int, width: int, what: str) -> None:
    """Refuse rows whose number or width is not the required one."""
    if len(rows) != count or (rows and len(rows[0]) != width):
        got = f"{len(rows)} x {len(rows[0]) if rows else 0}"
        raise MalformedMessageError(f"{what}: {got} bytes, expected {count} x {width}")


def require_length(value: Sequence[object], count: int, what: str) -> None:
    """Refuse a field whose length is not the required one."""
    if len(value) != count:
        raise MalformedMessageError(f"{what}: length {len(value)}, expected {count}")
