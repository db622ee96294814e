"""The idx format of MNIST and its relatives."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_KINDS: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


def read_idx(path: Path, axes: int) -> npt.NDArray[Any]:
    """A read-only array of bytes or of 32-bit integers from an idx file, gzipped or not.

    A damaged file, or one without ``axes`` axes, is a ValueError.
    """
    data = path.read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _KINDS:
        raise ValueError(
            f"{path} is no idx file of bytes or 32-bit integers: it starts with {data[:4].hex() or 'nothing'}"
        )
    if data[3] != axes:
        raise ValueError(f"{path} has {data[3]} axes, expected {axes}")
    kind, start = _KINDS[data[2]], 4 + 4 * axes
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if len(data) != start + prod(shape) * kind.itemsize:
        raise ValueError(f"{path} is damaged: {len(data)} bytes, not those of shape {shape}")
    return np.frombuffer(data, kind, offset=start).reshape(shape)
