"""Files of a data's owner that no other user of the machine may read, and that one process at a
time works on.
"""

import errno
import os
import stat
from pathlib import Path
from typing import IO, Any

from fedfw import portable
from fedfw.portable import NO_FOLLOW, NO_WAIT, sync_folder, user_number
from fedfw.rounds.files import make_private_folder, owner_only

__all__ = [
    "create_private",
    "make_private_folder",
    "open_regular",
    "open_unshared",
    "others_can_write",
    "owner_only",
    "require_private",
    "sync_folder",
    "wait_for_lock",
]


def open_unshared(path: str, flags: int) -> int:
    """Return the descriptor of a file, as ``opener`` of `open`; refuse one which another user could
    have written or put there.

    Raises
    ------
    OSError
        If the file is a symbolic link or no regular file, if another user owns it or may write it,
        or if its folder is such a link or may be written by others. Its ``strerror`` says which.
    """
    folder = Path(path).parent
    if folder.is_symlink():
        raise PermissionError(
            errno.EPERM, "its folder is a symbolic link, expected the folder itself", path
        )
    if others_can_write(folder.stat()):
        raise PermissionError(errno.EPERM, "others can write its folder, expected chmod go-w", path)
    opened = open_regular(path, flags)
    if others_can_write(os.fstat(opened)):
        os.close(opened)
        raise PermissionError(errno.EPERM, "others can write it, expected mode 0600", path)
    return opened


def open_regular(path: str, flags: int) -> int:
    """Return the descriptor of a regular file, as ``opener`` of `open`; a symbolic link and
    anything else is refused by an OSError with the reason.
    """
    # NO_FOLLOW refuses a link; NO_WAIT returns at once where a pipe would wait for its other end.
    try:
        opened = os.open(path, flags | NO_FOLLOW | NO_WAIT)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PermissionError(
                errno.EPERM, "it is a symbolic link, expected the file itself", path
            ) from None
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise PermissionError(errno.EPERM, "it is no regular file", path)
    return opened


def create_private(path: Path) -> None:
    """Make an empty file of mode 0600 where there is none; one that is there is kept as it is."""
    make_private_folder(path.parent)
    with open(path, "ab", opener=owner_only) as file:
        os.fsync(file.fileno())


def require_private(path: Path, mode: int) -> None:
    """Refuse a file whose mode lets another user read or change it."""
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(
            f"{path} has mode {stat.S_IMODE(mode):04o}, expected 0600: no other user may read or "
            "change it"
        )


def others_can_write(status: os.stat_result) -> bool:
    """Return whether a user beside this one and root may write a file, or put files into a folder
    and take them out.
    """
    user = user_number()
    # 0 is root, who may write anything; for root itself the owner does not matter.
    if status.st_uid not in (user, 0) and user != 0:
        return True
    # In a sticky folder, such as /tmp, users replace their own files only.
    sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) and not sticky


def wait_for_lock(file: IO[Any]) -> None:
    """Wait until no other process holds this file; it is given back when the file is closed, or the
    process ends.
    """
    portable.wait_for_lock(file.fileno())
