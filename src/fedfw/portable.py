"""Operating systems differ in locks, in limits of memory and in flags of files: all of it is here.

Linux is tested. Where a module or a function is missing, locks fall back to msvcrt's or to none,
and limits of memory to none; `LOCKS` and `MEMORY_LIMITS` say which.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:
    msvcrt = None  # type: ignore[assignment]
try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

LOCKS = fcntl is not None or msvcrt is not None
"""True where a lock keeps other processes out."""
MEMORY_LIMITS = resource is not None
"""True where the memory of a process can be limited."""
CLOSE_ON_EXEC: int = getattr(os, "O_CLOEXEC", 0)
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
_STATUS = Path("/proc/self/statm")


def try_lock(handle: int) -> bool:
    """Lock an open file for this process without waiting; return False if another process has the
    lock, and True without locking on a system that has no locks.
    """
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    if msvcrt is not None:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
    return True


def wait_for_lock(handle: int) -> None:
    """Lock an open file for this process, and wait until another process has released it."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)
    elif msvcrt is not None:
        msvcrt.locking(handle, msvcrt.LK_LOCK, 1)


def make_owner_only(handle: int) -> None:
    """Give an open file mode 0600, where files have modes."""
    if hasattr(os, "fchmod"):
        os.fchmod(handle, 0o600)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, where folders can be opened, so that the names of its files are on the
    disk.
    """
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def user_number() -> int:
    """Return the number of this process's user; 0 where users have none."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def physical_memory() -> int | None:
    """Return the bytes of this machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def address_space() -> int | None:
    """Return the bytes of this process's addresses; None where the system does not say."""
    try:
        pages = int(_STATUS.read_text().split()[0])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def limited_memory(nbytes: int) -> Iterator[None]:
    """Limit the address space of this process, within the block, to its present size and ``nbytes``
    more; do nothing on a system without such limits.
    """
    used = address_space()
    if resource is None or used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    finite = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([used + nbytes, *finite]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
