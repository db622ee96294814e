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
    if gib is None:
        yield
        return
    token = _allowed.set(gib)
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
        more = math.ceil(nbytes / GIB + 0.5)
        raise MemoryLimitError(
            f"{what} takes {_shown(nbytes)}, expected at most {_shown(limit)}; {VARIABLE}={more} "
            "allows more"
        )


class MemoryMeter:
    """Counts the bytes that the reader of a file holds, before they are allocated.

    Parameters
    ----------
    path : Path
        The file, whose size decides how much its reader may hold.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "small.csv"
    >>> _ = path.write_text("x,y")
    >>> meter = MemoryMeter(path)
    >>> meter.hold(1000, "inputs")
    >>> meter.held
    1000
    >>> try:
    ...     meter.hold(2**31, "inputs")
    ... except MemoryLimitError as error:
    ...     print(str(error).partition(": ")[2].partition(" (")[0])
    its reader needs 2.0 GiB of memory for inputs, expected at most 1.0 GiB
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held = 0
        self.limit = memory_limit(path.stat().st_size)

    def hold(self, nbytes: int, what: str) -> None:
        """Add bytes to those that are held.

        Raises
        ------
        MemoryLimitError
            If they are more than the file's reader may hold.
        """
        self.check(nbytes, what)
        self.held += nbytes

    def check(self, nbytes: int, what: str) -> None:
        """Refuse bytes beside those that are held, without adding them; raises as `hold` does."""
        if self.held + nbytes <= self.limit:
            return
        needed = self.held + nbytes
        usual = (
            f"{FACTOR} times the file's size or {_shown(LEAST)}, the larger, unless more is allowed"
        )
        raise MemoryLimitError(
            f"{self.path}: its reader needs {_shown(needed)} of memory for {what}, expected at "
            f"most {_shown(self.limit)} ({usual}): where the file is trusted, allow more by "
            f"data-memory in consent.toml or by {VARIABLE}={math.ceil(needed / GIB + 0.5)}"
        )


def _shown(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / (1 << 20):.1f} MiB"


_PROGRAM = Path(__file__).with_name("_reader.py")
_REFUSED = 3
_TOO_LARGE = 4
"""How `_reader.py` ends where a file is damaged, and where it needs more memory than it may take.
"""


def read_isolated(kind: str, path: Path, *names: str) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a file: "mat", "npz" (those of these names) or "libsvm".

    Returns
    -------
    dict
        Arrays by name, with dots between the names of structs and their fields.

    Raises
    ------
    MemoryLimitError
        Where more memory is needed than `fedfw.data.limits.memory_limit` allows for the file.
    ValueError
        Where the file is damaged.
    """
    meter = MemoryMeter(path)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-P",
            str(_PROGRAM),
            kind,
            str(path),
            folder,
            str(meter.limit),
            *names,
        ]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == _TOO_LARGE:
            meter.check(meter.limit + 1, "its contents")
        if done.returncode:
            said = (
                done.stdout
                if done.returncode == _REFUSED
                else f"its reader ended with status {done.returncode}"
            )
            raise ValueError(f"{path} is damaged: {' '.join(said.split())[:200]}")
        found = json.loads(done.stdout)
        return {
            name: np.load(Path(folder) / f"{i}.npy", allow_pickle=False)
            for i, name in enumerate(found)
        }
