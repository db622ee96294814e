"""The journal of what a client must not forget: which masks are used up, and which list it signed.

Every change is on the disk before the message is sent that rests on it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fedfw.portable import NO_FOLLOW, sync_folder, try_lock
from fedfw.secure_sums.errors import (
    ConsentError,
    JournalError,
    RollbackError,
    RoundUsedError,
    SecondListError,
)

_MAGIC = b"FSJ1"
_NUMBERS = struct.Struct(">QQQQ")
_DIGEST = 32
_LENGTH = len(_MAGIC) + _NUMBERS.size + 3 * _DIGEST


@dataclass(frozen=True)
class Entry:
    """The content of a journal.

    Parameters
    ----------
    serial : int
        How often it was written.
    starts : int
        How many batches were begun.
    next_round : int
        Masks of earlier rounds are used up.
    listed_round : int
        One more than the round whose list was signed last; 0 for none.
    list_digest : bytes
        The hash of that list.
    """

    serial: int = 0
    starts: int = 0
    next_round: int = 0
    listed_round: int = 0
    list_digest: bytes = bytes(_DIGEST)

    def to_bytes(self, run: bytes) -> bytes:
        """Return the entry with the hash of the run's name and a checksum."""
        numbers = _NUMBERS.pack(self.serial, self.starts, self.next_round, self.listed_round)
        body = _MAGIC + numbers + self.list_digest + hashlib.sha256(run).digest()
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes, run: bytes) -> Entry:
        """Return the entry that `to_bytes` wrote for this run."""
        body = data[:-_DIGEST]
        if len(data) != _LENGTH or hashlib.sha256(body).digest() != data[-_DIGEST:]:
            raise JournalError("the journal of secure sums is damaged")
        if body[-_DIGEST:] != hashlib.sha256(run).digest():
            raise JournalError("the journal of secure sums belongs to another run")
        start = len(_MAGIC) + _NUMBERS.size
        numbers = _NUMBERS.unpack(body[len(_MAGIC) : start])
        serial, starts, next_round, listed_round = numbers
        return cls(serial, starts, next_round, listed_round, body[start : start + _DIGEST])


class Journal:
    """One client's journal in one run, in memory; `FileJournal` keeps it on a disk.

    Parameters
    ----------
    entry : Entry, optional
        What it begins with.

    Examples
    --------
    >>> from fedfw.secure_sums import Journal, RoundUsedError
    >>> journal = Journal()
    >>> journal.use_round(3)
    >>> try:
    ...     journal.use_round(3)
    ... except RoundUsedError as error:
    ...     print(error)
    the masks of round 3 are used up, the next round is 4
    """

    def __init__(self, entry: Entry | None = None) -> None:
        self.entry = entry or Entry()

    def count_start(self, most: int) -> None:
        """Count a batch that begins; refuse more than ``most``."""
        if self.entry.starts >= most:
            raise ConsentError(f"{most} batches of this run were begun, which is what consent says")
        self._change(starts=self.entry.starts + 1)

    def use_round(self, number: int) -> None:
        """Use up the masks of a round and of all earlier ones."""
        if number < self.entry.next_round:
            raise RoundUsedError(
                f"the masks of round {number} are used up, the next round is "
                f"{self.entry.next_round}"
            )
        self._change(next_round=number + 1)

    def bind_list(self, number: int, digest: bytes) -> None:
        """Fix the list of a round; refuse another one, or one of a round that is past."""
        if number + 1 == self.entry.listed_round and digest == self.entry.list_digest:
            return
        if number < self.entry.listed_round:
            raise SecondListError(f"another list was signed for round {number}, or a later one")
        self._change(listed_round=number + 1, list_digest=digest)

    def _change(self, **values: int | bytes) -> None:
        changed = replace(
            self.entry,
            serial=self.entry.serial + 1,
            **values,  # type: ignore[arg-type]
        )
        self._write(changed)
        self.entry = changed

    def _write(self, entry: Entry) -> None:
        """Make an entry durable."""


class FileJournal(Journal):
    """A journal in a file that is replaced in one piece, and that one process at a time holds.

    Parameters
    ----------
    path : Path
        The file; made if it does not exist.
    run : bytes
        The name of the run.
    witness : Path, optional
        A second file, best on another disk, which gets the same entry. When one of the two is older
        than the other, a disk was set back to an earlier time.

    Raises
    ------
    JournalError
        If the file is damaged, of another run, or held by another process.
    RollbackError
        If the file is older than the witness, or missing beside it.

    Notes
    -----
    A crash between the two writes leaves the witness one entry behind, which is mended. A disk on
    which both files were set back shows nothing; see `Order`'s counter for what the server adds.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from fedfw.secure_sums import FileJournal
    >>> path = Path(tempfile.mkdtemp()) / "client.journal"
    >>> with FileJournal(path, b"run") as journal:
    ...     journal.use_round(7)
    >>> with FileJournal(path, b"run") as journal:
    ...     journal.entry.next_round
    8
    """

    def __init__(self, path: Path, run: bytes, witness: Path | None = None) -> None:
        self._path, self._run, self._witness = path, run, witness
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not try_lock(self._lock):
                raise JournalError(f"{path} is in use by another process")
            super().__init__(self._load())
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Release the file to other processes."""
        with suppress(OSError):
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> FileJournal:
        """Return the journal itself."""
        return self

    def __exit__(self, *reason: object) -> None:
        """Release the file."""
        self.close()

    def _load(self) -> Entry:
        kept = _read(self._path, self._run)
        seen = _read(self._witness, self._run) if self._witness else None
        if seen is not None and (kept or Entry()).serial < seen.serial:
            raise RollbackError(
                f"{self._path} has {(kept or Entry()).serial} entries and its witness {seen.serial}"
            )
        if seen is not None and kept is not None and kept.serial > seen.serial + 1:
            raise RollbackError(f"the witness of {self._path} was set back")
        return kept or Entry()

    def _write(self, entry: Entry) -> None:
        if self._lock < 0:
            raise JournalError(f"{self._path} is closed")
        # The journal first: a crash in between leaves the witness behind by one, never ahead.
        _replace(self._path, entry.to_bytes(self._run))
        if self._witness:
            _replace(self._witness, entry.to_bytes(self._run))


def _read(path: Path, run: bytes) -> Entry | None:
    if not path.exists():
        return None
    with open(path, "rb") as file:
        return Entry.from_bytes(file.read(_LENGTH + 1), run)


def _replace(path: Path, data: bytes) -> None:
    """Replace a file in one piece, durable when this returns."""
    fresh = path.with_name(path.name + ".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_FOLLOW, 0o600)
    with open(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_folder(path.parent)
