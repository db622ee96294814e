"""MATLAB 5 files, as far as EMNIST's need them: arrays of numbers in nested structs, compressed or not.

A file is a head of 128 bytes and then elements: a type, a length and so many bytes. An array is an element of elements:
flags, sides, name, and then its numbers or, for a struct, the names and arrays of its fields. Every length is checked
against what is really there before anything is made from it, and a file that inflates to more than its reader may hold
(`fedfw.data.limits`) is refused, so a damaged or hostile file costs no more memory than an honest one.
"""

import struct
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfw.data.limits import MemoryLimitError, MemoryMeter, read_into

_NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
_INT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15  # types of elements
_STRUCT, _NUMERIC, _COMPLEX = 2, range(6, 16), 0x800  # classes of arrays, and a flag
_PIECE = 1 << 16  # packed bytes that are given to zlib at once
_DEEPEST, _SIDES, _FIELDS = 4, 32, 64  # structs within structs, axes of an array, fields of a struct

Elements = Iterator[tuple[int, memoryview]]


class _Array(NamedTuple):
    name: str
    kind: int
    sides: list[int]
    rest: Elements


def read_mat(path: Path, name: str) -> Any:
    """Read a variable of a MATLAB 5 file: an array of the type in which its numbers are stored, or a dict of fields.

    What is damaged, too large, or of a kind that EMNIST's files do not have is a ValueError that names the file.
    """
    meter = MemoryMeter(path)
    meter.hold(path.stat().st_size, "the file itself")
    data = memoryview(path.read_bytes())
    if (head := bytes(data[124:128])) != b"\0\1IM":
        raise ValueError(f"{path} is no little-endian MATLAB 5 file: its head ends with {head.hex() or 'nothing'}")
    try:
        for kind, content in _elements(data[128:]):
            if kind == _COMPRESSED:
                content = _inflated(content, meter)
            elif kind != _MATRIX:
                raise ValueError(f"an element of type {kind}, expected {_MATRIX} or {_COMPRESSED}")
            if (array := _head(content)).name == name:
                return _value(array)
            if kind == _COMPRESSED:
                meter.release(len(content))
    except MemoryLimitError:
        raise
    except (ValueError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    raise ValueError(f"{path} has no variable {name!r}")


def _elements(data: memoryview) -> Elements:
    """Type and bytes of one element after the other."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack("<II", _bytes(data, at, 8))
        if small := kind >> 16:  # its length stands beside its type, and up to four bytes in the length's place
            yield kind & 0xFFFF, _bytes(data[at + 4 : at + 8], 0, small)
            at += 8
        else:
            yield kind, _bytes(data, at + 8, size)
            at += 8 + size + (0 if kind == _COMPRESSED else -size % 8)


def _bytes(data: memoryview, at: int, size: int) -> memoryview:
    if at + size > len(data):
        raise ValueError(f"{size} bytes promised where {max(0, len(data) - at)} are left")
    return data[at : at + size]


class _Inflater:
    """What packed bytes inflate to, a piece at a time; zlib copies what it was given and has not used yet."""

    def __init__(self, packed: memoryview) -> None:
        self._stream = zlib.decompressobj()
        self._packed = packed
        self._piece = b""

    @property
    def ended(self) -> bool:
        return self._stream.eof

    def read(self, size: int) -> bytes:
        """At most so many bytes, and none at the end."""
        while True:
            if not self._piece:
                self._piece = bytes(self._packed[:_PIECE])
                self._packed = self._packed[_PIECE:]
            found = self._stream.decompress(self._piece, size)
            self._piece = self._stream.unconsumed_tail
            if found or self._stream.eof or not (self._piece or self._packed):
                return found


def _inflated(packed: memoryview, meter: MemoryMeter) -> memoryview:
    """The array in a compressed element, no more of it than it promises itself."""
    stream = _Inflater(packed)
    head = np.zeros(8, np.uint8)
    if read_into(head, stream) < len(head):
        raise ValueError("a compressed element ends before its head does")
    kind, size = struct.unpack("<II", head.tobytes())
    if kind != _MATRIX:
        raise ValueError(f"a compressed element of type {kind}, expected {_MATRIX}")
    meter.hold(size, "a compressed array")
    content = np.empty(size, np.uint8)
    found = read_into(content, stream)
    if found < size or stream.read(1) or not stream.ended:
        raise ValueError(f"a compressed element does not inflate to the {size} bytes that it promises")
    return content.data


def _head(data: memoryview) -> _Array:
    """What stands before an array's numbers or fields."""
    parts = _elements(data)
    flags = int.from_bytes(_next(parts, _UINT32)[:4], "little")
    sides: list[int] = np.frombuffer(_next(parts, _INT32)[: 4 * _SIDES + 4], "<i4").tolist()
    name = bytes(_next(parts, _INT8)).decode("latin-1")
    if flags & _COMPLEX or not 2 <= len(sides) <= _SIDES or min(sides) < 0:
        raise ValueError(f"an array with flags {flags:#x} and sides {sides}, expected real numbers or a struct")
    return _Array(name, flags & 0xFF, sides, parts)


def _value(array: _Array, depth: int = 1) -> Any:
    _, kind, sides, parts = array
    if kind in _NUMERIC:
        stored, data = next(parts, (0, memoryview(b"")))
        if stored not in _NUMBERS:
            raise ValueError(f"numbers of type {stored}, expected one of {', '.join(map(str, _NUMBERS))}")
        numbers = np.frombuffer(data, _NUMBERS[stored])
        if len(numbers) != prod(sides):
            raise ValueError(f"{len(numbers)} numbers in an array of sides {sides}")
        return numbers.reshape(sides, order="F")
    if kind != _STRUCT or prod(sides) != 1 or depth > _DEEPEST:
        raise ValueError(f"an array of class {kind} and sides {sides} at depth {depth}, expected numbers or one struct")
    width = int.from_bytes(_next(parts, _INT32)[:4], "little")  # bytes of each field's name with the zeros behind it
    names = bytes(_next(parts, _INT8))
    if not width or len(names) % width or len(names) > _FIELDS * width:
        raise ValueError(f"{len(names)} bytes of field names of {width} each, expected at most {_FIELDS} names")
    fields = {}
    for at in range(0, len(names), width):
        field = names[at : at + width].partition(b"\0")[0].decode("latin-1")
        fields[field] = _value(_head(_next(parts, _MATRIX)), depth + 1)
    return fields


def _next(parts: Elements, expected: int) -> memoryview:
    kind, data = next(parts, (0, memoryview(b"")))
    if kind != expected:
        raise ValueError(f"an element of type {kind}, expected {expected}")
    return data
