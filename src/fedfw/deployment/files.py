"""Files of a data's owner that nobody else on the machine may read, and that one process at a time works on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]


def owner_only(path: str, flags: int) -> int:
    """An opener: files that `open` makes with ``opener=owner_only`` have mode 0600 from their first moment.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "secret"
    >>> with open(path, "w", opener=owner_only) as file:
    ...     _ = file.write("42")
    >>> oct(path.stat().st_mode & 0o777)
    '0o600'
    """
    return os.open(path, flags, 0o600)


def make_private_folder(path: Path) -> None:
    """Make a folder that others cannot look into; one that is there already stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def wait_for_lock(file: IO[Any]) -> None:
    """Wait until no other process holds this file; it is given back when the file is closed, or the process ends."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that the names of its files are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
