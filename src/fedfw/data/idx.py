"""The idx format of MNIST and its relatives, which no dependency reads."""

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedfw.data.limits import MemoryMeter

_PIECE = 1 << 20  # bytes that are read at once
_KINDS: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


def read_idx(path: Path, axes: int) -> npt.NDArray[Any]:
    """Read an array of bytes or of 32-bit integers from an idx file, gzipped or not.

    A damaged file, one without ``axes`` axes, or one that promises more bytes than its reader may hold is a ValueError.
    No more is inflated than the head promises.
    """
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            return _read(gzip.GzipFile(fileobj=file) if packed else file, path, axes)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged: {error}") from None


def _read(stream: BinaryIO | gzip.GzipFile, path: Path, axes: int) -> npt.NDArray[Any]:
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _KINDS:
        raise ValueError(f"{path} is no idx file of bytes or 32-bit integers: it starts with {head.hex() or 'nothing'}")
    if head[3] != axes:
        raise ValueError(f"{path} has {head[3]} axes, expected {axes}")
    kind, sides = _KINDS[head[2]], stream.read(4 * axes)
    shape = tuple(int.from_bytes(sides[at : at + 4], "big") for at in range(0, 4 * axes, 4))
    size = prod(shape) * kind.itemsize
    if not size:
        raise ValueError(f"{path} is damaged: it promises {size} bytes of shape {shape}, expected at least 1")
    MemoryMeter(path).hold(size, f"an array of shape {shape}")
    data = np.empty(size, np.uint8)
    found = 0
    while piece := stream.read(min(_PIECE, size - found)):
        data[found : found + len(piece)] = np.frombuffer(piece, np.uint8)
        found += len(piece)
    if found < size or stream.read(1):  # one byte more shows that a file goes on
        many = found if found < size else "more"
        raise ValueError(f"{path} is damaged: {many} bytes, expected {size} of shape {shape}")
    return data.view(kind).reshape(shape)
