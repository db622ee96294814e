"""NumPy's archives of arrays, read without unpickling anything."""

from __future__ import annotations

import io
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfw.data.archives import UNREADABLE, reason


def read_npz(path: Path, *names: str, kinds: str, largest: int) -> list[npt.NDArray[Any]]:
    """Arrays by name; the file's own words on their sizes are checked before anything is made from them.

    ``kinds`` are NumPy's letters for types: "ui" for whole numbers, with "f" for others and "b" for truth values. An
    array of another kind, or of more than ``largest`` bytes, and what is damaged, is a ValueError that names the file.
    """
    arrays = []
    try:
        with zipfile.ZipFile(path) as archive:
            for name in names:
                with archive.open(f"{name}.npy") as file:
                    data = file.read(largest + 1)
                stream = io.BytesIO(data)
                if np.lib.format.read_magic(stream) != (1, 0):
                    raise ValueError(f"{name} is no array of version 1.0")
                shape, by_columns, kind = np.lib.format.read_array_header_1_0(stream)
                rest = data[stream.tell() :]
                if kind.kind not in kinds or min(shape, default=1) < 0 or len(data) > largest:
                    expected = f"numbers (of kind {', '.join(kinds)}) in at most {largest} bytes"
                    raise ValueError(f"{name} is {kind} of {shape}, expected {expected}")
                if len(rest) != prod(shape) * kind.itemsize:
                    raise ValueError(f"{name} has {len(rest)} bytes, which are not those of {shape}")
                array = np.frombuffer(bytearray(rest), kind)
                arrays.append(array.reshape(shape, order="F" if by_columns else "C"))
    except (OSError, *UNREADABLE) as error:
        raise ValueError(f"{path} is damaged: {reason(error)}") from None
    return arrays
