"""The ledger of a data set: every private release that was ever made from it, whichever run asked
for it.

It is a file of JSON lines to which lines are only ever appended. Each line holds the SHA-256 of the
line before it, so that a line that was changed, left out or cut off is noticed. A witness elsewhere
has the SHA-256 of the last line, so that an older copy of the file is noticed, too. A database
would notice neither, so this is written here. A client that cannot read all of it must release
nothing. Beside it lies the count of all answers, private or not, over all runs, names and restarts.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedfw.deployment.files import open_unshared, wait_for_lock
from fedfw.rounds.files import write_atomically


class LedgerError(ValueError):
    """A ledger that is missing, or that does not hold what was written."""


@dataclass(frozen=True)
class Release:
    """One line: a private release that was made, or may have been made.

    Parameters
    ----------
    run : str
        The training that asked for it.
    release : int
        Its number within that run, from 1.
    promise : str
        All that must stay the same within a run: the signature of its
        `fedfw.privacy.steps.PrivacyPlan`, what cut the owner's data, and an HMAC of the data under
        the owner's secret.
    noise : float
        The noise multiplier.
    epsilon, delta : float
        What the run has spent with this release and those before it.
    reserved : float
        The epsilon of all releases that the run may make; the budget is charged with it at once. A
        server chooses when a run ends and may do so by what it has seen, so that nothing of it is
        ever given back.
    share : float
        The largest w clip / count that a gradient had in this run: the client may remember it,
        without noise.
    ended : bool
        Whether the run's promise ended because something of it changed. Such a line is no release
        of its own.
    before : str
        SHA-256 of the line before; filled in by the ledger.
    weight, data : float, str
        Of lines that version 0.2 wrote: the largest w_i, and a digest of the data without a key.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    run: str
    release: int
    promise: str
    noise: float
    epsilon: float
    delta: float
    reserved: float = 0.0
    share: float = 0.0
    ended: bool = False
    before: str = ""
    weight: float | None = None
    data: str | None = None

    @property
    def written(self) -> bytes:
        """Return the line, without its end."""
        return json.dumps(
            {name: value for name, value in asdict(self).items() if value is not None}
        ).encode()


_LINE = TypeAdapter(Release)


def first_name(run: str) -> str:
    """Return the name of a run before its server went on from an older copy: all these are one run,
    with one promise.

    Examples
    --------
    >>> first_name("trial-5f"), first_name("trial-5f.12.7")
    ('trial-5f', 'trial-5f')
    """
    return re.sub(r"([.][0-9]+)+$", "", run)


def _last_of_runs(releases: Sequence[Release]) -> list[Release]:
    """Return the last line of every run, under whatever name it went on."""
    return list({first_name(release.run): release for release in releases}.values())


def charged(releases: Sequence[Release]) -> tuple[float, float]:
    """Return the epsilon and the delta that a budget is charged with: those of all that the runs of
    these releases may make.

    Examples
    --------
    >>> one = Release("a", 1, "", 5.0, epsilon=0.5, delta=1e-6, reserved=2.0)
    >>> charged([one, replace(one, release=2, epsilon=0.75), replace(one, run="b")])
    (4.0, 2e-06)
    """
    last = _last_of_runs(releases)
    # Version 0.2 reserved nothing.
    eps = math.fsum(max(release.reserved, release.epsilon) for release in last)
    return eps, math.fsum(release.delta for release in last)


def spent(releases: Sequence[Release]) -> tuple[float, float]:
    """Return the epsilon and the delta of all releases so far: runs add up, and within a run the
    last line counts.

    Examples
    --------
    >>> one = Release("a", 1, "", 5.0, epsilon=0.5, delta=1e-6)
    >>> spent([one, replace(one, release=2, epsilon=0.75), replace(one, run="b", epsilon=0.25)])
    (1.0, 2e-06)
    """
    last = _last_of_runs(releases)
    eps = math.fsum(release.epsilon for release in last)
    return eps, math.fsum(release.delta for release in last)


@dataclass(frozen=True)
class Ledger:
    """The file of one data set.

    Parameters
    ----------
    path : Path
        The file; it must exist before anything is recorded, so that a lost one is not taken for an
        empty one.
    witness : Path, optional
        Another file, which has the SHA-256 of the line that was appended last with this
        witness.

    Examples
    --------
    >>> import tempfile
    >>> ledger = Ledger(Path(tempfile.mkdtemp()) / "clinic.ledger.jsonl")
    >>> from fedfw.deployment.files import create_private
    >>> create_private(ledger.path)
    >>> first = ledger.record(lambda so_far: Release("run", len(so_far) + 1, "", 5.0, 0.5, 1e-6))
    >>> [one.release for one in ledger.releases()]
    [1]
    """

    path: Path
    witness: Path | None = None

    def releases(self) -> list[Release]:
        """Return all lines, oldest first.

        Raises
        ------
        LedgerError
            If the file is missing, cannot be read, or was damaged.
        """
        with self._opened("rb") as file:
            wait_for_lock(file)
            return self._verified(file.read())

    def record(self, make: Callable[[list[Release]], Release | None]) -> Release | None:
        """Append the release that ``make`` returns, given those so far; it is on the disk when this
        returns.

        Parameters
        ----------
        make : callable
            From all releases so far to the next one, or to None where none is allowed. No other
            process records anything while it is called.

        Returns
        -------
        Release or None
            What was appended.

        Raises
        ------
        LedgerError
            If the file is missing, cannot be read or written, or was damaged.
        """
        with self._opened("r+b") as file:
            wait_for_lock(file)
            written = file.read()
            release = make(self._verified(written))
            if release is None:
                return None
            last_line = written.splitlines()[-1] if written else b""
            release = replace(release, before=_digest(last_line), weight=None, data=None)
            line = release.written
            try:
                # The witness follows the ledger: where the process ends between the two writes, it
                # has the digest of an earlier line, which `_verified` accepts.
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
                if self.witness is not None:
                    write_atomically(self.witness, _digest(line).encode(), private=True)
            except OSError as error:
                raise LedgerError(f"{self.path} cannot be written: {error.strerror}") from None
            return release

    def _opened(self, mode: str) -> IO[bytes]:
        """Open the ledger's file, which must be there and unshared."""
        try:
            opened: IO[bytes] = open(self.path, mode, opener=open_unshared)  # noqa: SIM115
        except OSError as error:
            raise LedgerError(
                f"{self.path} cannot be opened ({error.strerror}): what was released from these "
                "data is unknown"
            ) from None
        return opened

    def _witnessed(self) -> str | None:
        """Return what the witness holds; None where there is none yet."""
        if self.witness is None:
            return None
        try:
            with open(self.witness, "rb", opener=open_unshared) as file:
                return file.read().decode("ascii", "replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(
                f"{self.witness} cannot be opened ({error.strerror}), and it vouches for "
                f"{self.path}"
            ) from None

    def _verified(self, written: bytes) -> list[Release]:
        """Return the releases; every line holds the digest of the line before it, so that one that
        is changed, cut off or removed is noticed.
        """
        releases = []
        digests = [_digest(b"")]  # of every line; the first line is preceded by an empty one
        if written and not written.endswith(b"\n"):
            raise LedgerError(f"{self.path} is damaged: its last line is cut off")
        for number, line in enumerate(written.splitlines(), 1):
            try:
                release = _LINE.validate_json(line)
            except ValidationError:
                raise LedgerError(f"{self.path} is damaged: line {number} is no release") from None
            amounts = release.epsilon, release.delta, release.reserved, release.share
            is_sound = min(amounts) >= 0 and release.release >= 1
            if release.before != digests[-1] or not is_sound:
                raise LedgerError(
                    f"{self.path} is damaged: line {number} does not follow the line before it"
                )
            releases.append(release)
            digests.append(_digest(line))
        witnessed = self._witnessed()
        if witnessed is not None and witnessed not in digests:
            raise LedgerError(
                f"{self.path} is damaged: it is older than the last release, see {self.witness}"
            )
        return releases


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
