"""The state of an owner's promise, and how it closes: no error may reveal anything twice.

A private client that answers one question by failing gives away one bit, and a server asks as often
as it likes. So an order is worked on behind a mark on the disk. It is removed when the answer is
stored. Where an error or a limit strikes in between, the promise is closed: the client answers as
it does when the budget is spent, and takes no order until its owner has acted. A process that is
killed leaves the mark behind, and the next order finds it.
"""

import json
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedfw.deployment.files import make_private_folder, owner_only, sync_folder, wait_for_lock
from fedfw.errors import MessageError
from fedfw.rounds.files import write_atomically

CLOSED = ".closed"
AT_WORK = ".at-work"
LOCK = ".promise.lock"
"""These are suffixes of the files beside a ledger."""
KILLED = "the process that worked on this order ended before it had stored an answer"


class PromiseClosedError(RuntimeError):
    """The promise is closed, and takes no order until its owner acts."""


@dataclass(frozen=True)
class Closing:
    """Why and when a promise was closed.

    Parameters
    ----------
    order : str
        The order that was worked on.
    reason : str
        What happened.
    since : str
        The date and time.
    """

    order: str
    reason: str
    since: str


@dataclass(frozen=True)
class Promise:
    """The state of one data set's promise.

    Parameters
    ----------
    folder : Path
        The owner's folder, where the ledger is.
    name : str
        Of the data set.

    Examples
    --------
    >>> import tempfile
    >>> promise = Promise(Path(tempfile.mkdtemp()), "clinic")
    >>> with promise.at_work("run trial, round 1"):
    ...     answer = 42
    >>> try:
    ...     with promise.at_work("run trial, round 2"):
    ...         raise MemoryError("too much")
    ... except PromiseClosedError:
    ...     print(promise.closing().reason)
    MemoryError: too much
    >>> promise.reopen().order
    'run trial, round 2'
    >>> promise.closing() is None
    True
    """

    folder: Path
    name: str

    def _path(self, suffix: str) -> Path:
        return self.folder / f"{self.name}{suffix}"

    @contextmanager
    def at_work(self, order: str) -> Iterator[None]:
        """Work on an order; no other process works on these data meanwhile.

        Parameters
        ----------
        order : str
            What is worked on, for the owner.

        Raises
        ------
        PromiseClosedError
            If the promise is closed, or if anything but a `MessageError` is raised within, which
            closes it. A `MessageError` is about the order alone and changes nothing.
        """
        with self._alone():
            mark = self._path(AT_WORK)
            # On a full disk the mark of a killed process stays, and closes the promise as well.
            with suppress(OSError):
                self._find_killed()
            if self._path(CLOSED).exists() or mark.exists():
                raise PromiseClosedError(f"closed, see {self._path(CLOSED)}")
            with open(mark, "x", encoding="utf-8", opener=owner_only) as file:
                file.write(order)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self.folder)  # the mark is on the disk before data are used
            try:
                yield
            except MessageError:
                mark.unlink()
                raise
            except Exception as error:
                reason = " ".join("".join(traceback.format_exception_only(error)).split())
                # On a full disk the mark stays, and closes the promise as well: whether it could be
                # written must not change the answer.
                with suppress(OSError):
                    self._close(order, reason)
                raise PromiseClosedError(f"closed, see {self._path(CLOSED)}") from error
            mark.unlink()

    def close(self, order: str, reason: str) -> None:
        """Close the promise for a reason of the owner's or of the client's."""
        with self._alone():
            self._close(order, reason)

    def closing(self) -> Closing | None:
        """Return why the promise is closed; None while it is open, also while an order is worked
        on.

        A file that cannot be read is a closed promise all the same.
        """
        path = self._path(CLOSED)
        if not path.exists():
            return None
        with suppress(OSError, ValueError, TypeError):
            return Closing(**json.loads(path.read_text(encoding="utf-8")))
        return Closing("unknown", f"{path} cannot be read", "unknown")

    def settle(self) -> Closing | None:
        """Return why the promise is closed, None while it is open; waits for an order that is
        worked on, and closes the promise for one whose process was killed.
        """
        with self._alone():
            self._find_killed()
        return self.closing()

    def reopen(self) -> Closing | None:
        """Take orders again; returns why the promise was closed, or None if it was open."""
        with self._alone():
            self._find_killed()
            closing = self.closing()
            self._path(CLOSED).unlink(missing_ok=True)
            sync_folder(self.folder)
        return closing

    @contextmanager
    def _alone(self) -> Iterator[None]:
        make_private_folder(self.folder)
        with open(self._path(LOCK), "w", opener=owner_only) as lock:
            wait_for_lock(lock)
            yield

    def _find_killed(self) -> None:
        """Close the promise if a mark was left behind: no process holds the lock, so that its
        process has ended.
        """
        mark = self._path(AT_WORK)
        if mark.exists():
            self._close(mark.read_text(encoding="utf-8", errors="replace"), KILLED)

    def _close(self, order: str, reason: str) -> None:
        """Write why the promise is closed, on the disk before the mark is removed: at no time are
        both missing.
        """
        closing = {"order": order, "reason": reason, "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        write_atomically(self._path(CLOSED), json.dumps(closing).encode(), private=True)
        sync_folder(self.folder)
        self._path(AT_WORK).unlink(missing_ok=True)
