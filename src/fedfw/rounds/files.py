"""Files that are either the old ones or the new ones, never half of each, in folders that one
process works in.
"""

import os
import re
import secrets
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedfw.portable import CLOSE_ON_EXEC, make_owner_only, try_lock

LOCK = ".lock"
"""The file in a folder that the process which works there has locked; it holds that process's
number.
"""


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file in one piece: beside the target, flushed to disk, then put in its place.

    Parameters
    ----------
    path : Path
        The target; its folder is made if it is missing.
    data : bytes
        What the file holds afterwards.
    private : bool
        Whether only the file's owner may read it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes of several machines may write into one folder, where the numbers of processes are no
    # names.
    temporary = path.with_name(f".{path.name}.{secrets.randbits(64)}.tmp")
    try:
        with name_in_errors(path):
            # It has its rights from the beginning, so that no other user can open it in between.
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666
            )
            with open(descriptor, "wb") as file:
                if private:
                    make_owner_only(descriptor)  # whatever the umask takes away
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Name this file in errors of the disk within: a write to a full disk does not say where it
    was.

    Examples
    --------
    >>> with name_in_errors(Path("history.jsonl")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
        ...
    OSError: [Errno 28] No space left on device: 'history.jsonl'
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def owner_only(path: str, flags: int) -> int:
    """Open a file as an ``opener`` of `open`: a new file has mode 0600, whatever the umask.

    A file that is there already keeps its mode: what others could read or write is not made to look
    as if they never could.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "secret"
    >>> with open(path, "w", opener=owner_only) as file:
    ...     _ = file.write("42")
    >>> oct(path.stat().st_mode & 0o777)
    '0o600'
    """
    if flags & os.O_CREAT:
        try:
            descriptor = os.open(path, flags | os.O_EXCL, 0o600)
        except FileExistsError:
            # The caller asked for a new file.
            if flags & os.O_EXCL:
                raise
        else:
            make_owner_only(descriptor)
            return descriptor
    return os.open(path, flags, 0o600)


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner can open; one that exists keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(0o700)


def remove_leftovers(folder: Path) -> None:
    """Remove what `write_atomically` left in a folder when a process was killed; no other process
    may be writing there.
    """
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9]+\.tmp", path.name) and path.is_file():
            path.unlink()


class FolderLock:
    """Keeps other processes out of a folder for as long as this object lives.

    `lock_folder` makes it. It is given back when the last holder lets go of it, and when the
    process ends.
    """

    def __init__(self, folder: Path) -> None:
        """Lock the folder, and write this process's id for those that come later."""
        descriptor = owner_only(str(folder / LOCK), os.O_RDWR | os.O_CREAT | CLOSE_ON_EXEC)
        self._close = weakref.finalize(self, os.close, descriptor)
        if not try_lock(descriptor):
            # The owner wrote its process id there: 20 characters hold any.
            owner = os.read(descriptor, 20).decode("ascii", "replace").strip()
            self._close()
            raise ValueError(
                f"{folder} is in use by another process ({owner}): wait for its end, or stop it"
            )
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())


_locks: weakref.WeakValueDictionary[Path, FolderLock] = weakref.WeakValueDictionary()


def lock_folder(folder: Path) -> FolderLock:
    """Return the lock on a folder, which all users in one process share.

    Raises
    ------
    ValueError
        If another process holds it.
    """
    path = folder.resolve()
    lock = _locks.get(path)
    if lock is None:
        lock = _locks[path] = FolderLock(path)
    return lock
