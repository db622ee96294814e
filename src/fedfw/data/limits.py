"""How much memory the reader of a file may take, and files that a library reads in a process of its
own, whose memory the operating system limits.

Packed files can be a thousand times larger than they look, and the libraries that read them have no
limits of their own; some of them crash on damaged files. Arrays come back as .npy files, which hold
no code.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfw.options import parse_number

FACTOR = 4
"""A reader may take so many times the file's size."""
LEAST = 1 << 30
"""Bytes that a reader may take however small its file is."""
LARGEST_DRAWN = 8 << 30
"""Bytes of data that are drawn and not read."""
VARIABLE = "FEDFW_DATA_MEMORY"
"""The environment variable that allows more, in GiB."""
GIB = 1 << 30

_allowed: ContextVar[float] = ContextVar("fedfw_data_memory", default=0.0)


class MemoryLimitError(ValueError):
    """A file whose contents need more memory than its reader may take."""


@contextmanager
def allow_memory(gib: float | None) -> Iterator[None]:
    """Let readers take more memory than the usual limit within the context.

    Parameters
    ----------
    gib : float or None
        In GiB; a number below the usual limit changes nothing. None leaves the limit as it is.
    """
    token = _allowed.set(_allowed.get() if gib is None else gib)
    try:
        yield
    finally:
        _allowed.reset(token)


def memory_limit(nbytes: int) -> int:
    """Return how many bytes of memory the reader of a file may take.

    Parameters
    ----------
    nbytes : int
        The size of the file.

    Examples
    --------
    >>> memory_limit(1000) == 2**30, memory_limit(2**30) == 2**32
    (True, True)
    """
    own = max(_allowed.get(), _allowed_by_environment())
    return max(usual_limit(nbytes), int(own * GIB))


def usual_limit(nbytes: int) -> int:
    """Return how many bytes the reader of a file of so many bytes may take where no more is
    allowed.
    """
    return max(FACTOR * nbytes, LEAST)


def _allowed_by_environment() -> float:
    """Return the GiB that $FEDFW_MEMORY allows; 0 where it is not set."""
    text = os.environ.get(VARIABLE, "")
    gib = parse_number(text or "0")
    if isinstance(gib, str) or not 0 <= gib < 2**33:
        raise ValueError(f"{VARIABLE}={text!r}, expected a number of GiB such as 8")
    return gib


def check_drawn(nbytes: int, what: str) -> None:
    """Refuse drawn data that would take more than `LARGEST_DRAWN`, or than is allowed, before they
    are drawn.

    Parameters
    ----------
    nbytes : int
        What they take while they are drawn.
    what : str
        Names them in the error.
    """
    limit = max(LARGEST_DRAWN, memory_limit(0))
    if nbytes > limit:
        more = math.ceil(nbytes / GIB + 0.5)  # GiB, with half a GiB to spare
        raise MemoryLimitError(
            f"{what} takes {_shown(nbytes)}, expected at most {_shown(limit)}; {VARIABLE}={more} "
            "allows more"
        )


def check_memory(path: Path, nbytes: int, what: str) -> None:
    """Refuse a file whose reader needs more memory than it may take, before it is allocated.

    Parameters
    ----------
    path : Path
        The file, whose size decides how much its reader may hold.
    nbytes : int
        What the reader will hold.
    what : str
        Names that in the error.

    Raises
    ------
    MemoryLimitError
        If ``nbytes`` are more than `memory_limit` allows.
    """
    limit = memory_limit(path.stat().st_size)
    if nbytes <= limit:
        return
    usual = f"{FACTOR} times the file's size or {_shown(LEAST)}, the larger, unless more is allowed"
    raise MemoryLimitError(
        f"{path}: its reader needs {_shown(nbytes)} of memory for {what}, expected at "
        f"most {_shown(limit)} ({usual}): where the file is trusted, allow more by "
        f"data-memory in consent.toml or by {VARIABLE}={math.ceil(nbytes / GIB + 0.5)}"
    )


def _shown(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / (1 << 20):.1f} MiB"


_PROGRAM = Path(__file__).with_name("_reader.py")
_REFUSED = 3
_TOO_LARGE = 4
"""How `_reader.py` ends where a file is damaged, and where it needs more memory than it may take.
"""


def read_isolated(kind: str, path: Path, *names: str) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a file: "mat" or "npz" (those of these names), "libsvm", "csv" (its
    inputs, and the columns of these names), or "columns" (those of these names of a .csv file).

    Returns
    -------
    dict
        Arrays by name, with dots between the names of structs and their fields.

    Raises
    ------
    MemoryLimitError
        Where more memory is needed than `fedfw.data.limits.memory_limit` allows for the file.
    ValueError
        Where the file is damaged, or is not what its name says.
    """
    limit = memory_limit(path.stat().st_size)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-P",
            str(_PROGRAM),
            kind,
            str(path),
            folder,
            str(limit),
            *names,
        ]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == _TOO_LARGE:
            # The reader cannot say how much it needed: one byte above the limit raises the error.
            check_memory(path, limit + 1, "its contents")
        if done.returncode:
            cause = f"its reader ended with status {done.returncode}"
            if done.returncode == _REFUSED:
                cause = " ".join(done.stdout.split())[:200]
            raise ValueError(f"{path} cannot be read: {cause}")
        array_names = json.loads(done.stdout)
        return {
            name: np.load(Path(folder) / f"{i}.npy", allow_pickle=False)
            for i, name in enumerate(array_names)
        }
