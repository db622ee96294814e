"""NumPy's archives of arrays, read without unpickling anything."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedfw.data.archives import UNREADABLE, reason
from fedfw.data.limits import CHUNK, MemoryLimitError, MemoryMeter, read_into

_MOST_MEMBERS = 10_000
"""Each entry of an archive's directory becomes an object of half a kilobyte when the archive is opened."""
_ENTRY = b"PK\1\2"
"""Begins each entry of an archive's directory."""


Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""The shape and the type of an array."""


def read_kinds(path: Path, *names: str, kinds: str) -> list[Kind]:
    """Read the shapes and types of arrays by name, without their contents; refuses what `read_npz` refuses."""
    found = []
    with _opened(path) as archive:
        for name in names:
            with _member(archive, name) as file:
                shape, _, kind = _read_head(file, name, kinds)
                found.append((shape, kind))
    return found


def read_npz(
    path: Path, *names: str, kinds: str, meter: MemoryMeter, most_bytes: int | None = None
) -> list[npt.NDArray[Any]]:
    """Read arrays by name; their sizes are checked before anything is made from them.

    Parameters
    ----------
    path : Path
        The archive.
    *names : str
        Of the arrays.
    kinds : str
        NumPy's letters for types: "ui" for whole numbers, with "f" for others and "b" for truth values.
    meter : MemoryMeter
        Holds the arrays' bytes.
    most_bytes : int, optional
        A limit for each array, where the contents of the file are known.

    Raises
    ------
    ValueError
        For an array of another kind or that is too large, and for a damaged file; it names the file.
    """
    arrays = []
    with _opened(path) as archive:
        for name in names:
            with _member(archive, name) as file:
                shape, by_columns, kind = _read_head(file, name, kinds)
                nbytes = prod(shape) * kind.itemsize
                if most_bytes is not None and nbytes > most_bytes:
                    raise ValueError(f"{name} is {kind} of {shape}, expected numbers in at most {most_bytes} bytes")
                meter.hold(nbytes, f"{name}, {kind} of shape {shape}")
                data = np.empty(nbytes, np.uint8)
                if read_into(data, file) < nbytes or file.read(1):
                    raise ValueError(f"{name} has other bytes than those of {shape}")
                arrays.append(data.view(kind).reshape(shape, order="F" if by_columns else "C"))
    return arrays


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever is damaged in it becomes a ValueError that names the file."""
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            yield archive
    except MemoryLimitError:
        raise
    except (OSError, *UNREADABLE) as error:
        raise ValueError(f"{path} is damaged: {reason(error)}") from None


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is packed by method {info.compress_type}, expected deflate or none")
    return archive.open(info)


def _check_directory(path: Path) -> None:
    """Refuse an archive of very many members before `zipfile` makes an object for each."""
    found, end = 0, b""
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found += (end + chunk).count(_ENTRY)
            end = chunk[1 - len(_ENTRY) :]
    if found > _MOST_MEMBERS:
        raise ValueError(f"an archive of {found} members, expected at most {_MOST_MEMBERS}")


def _read_head(file: IO[bytes], name: str, kinds: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is stored by columns, and type of an array."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{name} is no array of version 1.0")
    try:
        shape, by_columns, kind = np.lib.format.read_array_header_1_0(file)
    except (SyntaxError, TokenError, MemoryError):
        raise ValueError(f"{name} has a head that cannot be read") from None
    if kind.kind not in kinds or min(shape, default=1) < 0:
        raise ValueError(f"{name} is {kind} of {shape}, expected numbers (of kind {', '.join(kinds)})")
    return shape, by_columns, kind
