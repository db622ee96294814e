"""The idx format of MNIST and its relatives."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """An array of bytes from an idx file, gzipped or not; a damaged file is a ValueError."""
    data = path.read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is no idx file of bytes")
    axes = data[3]
    shape = tuple(int.from_bytes(data[4 + 4 * a : 8 + 4 * a], "big") for a in range(axes))
    body = data[4 + 4 * axes :]
    if len(body) != prod(shape):
        raise ValueError(f"{path} is damaged: {len(body)} values for shape {shape}")
    return np.frombuffer(body, np.uint8).reshape(shape)
