"""Files that are either the old ones or the new ones, never half of each, in folders that one process works in."""

from __future__ import annotations

import os
import re
import secrets
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""The file in a folder that the process which works there has locked; it holds that process's number."""


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write beside the target, flush to disk, then replace.

    Parameters
    ----------
    path : Path
        The target; its folder is made if it is missing.
    data : bytes
        What the file holds afterwards.
    private : bool
        Whether nobody but the file's owner may read it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes of several machines may write into one folder, where the numbers of processes are no names.
    temporary = path.with_name(f".{path.name}.{secrets.randbits(64)}.tmp")
    try:
        # It has its rights from the beginning, so that nobody can open it in between.
        made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with open(made, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove what `write_atomically` left in a folder when a process was killed; nobody else may be writing there."""
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9]+\.tmp", path.name) and path.is_file():
            path.unlink()


class FolderLock:
    """Keeps other processes out of a folder for as long as somebody here holds it.

    `lock_folder` makes it. It is given back when the last holder lets go of it, and when the process ends.
    """

    def __init__(self, folder: Path) -> None:
        held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        self._close = weakref.finalize(self, os.close, held)
        if fcntl is None:
            return
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(held, 20, 0).decode("ascii", "replace").strip()
            self._close()
            raise ValueError(f"{folder} is in use by another process ({owner}): wait for its end, or stop it") from None
        os.ftruncate(held, 0)
        os.pwrite(held, f"{os.getpid()}\n".encode(), 0)


_locks: weakref.WeakValueDictionary[Path, FolderLock] = weakref.WeakValueDictionary()


def lock_folder(folder: Path) -> FolderLock:
    """The lock on a folder, which all of one process share.

    Raises
    ------
    ValueError
        If another process holds it.
    """
    place = folder.resolve()
    found = _locks.get(place)
    if found is None:
        found = _locks[place] = FolderLock(place)
    return found
