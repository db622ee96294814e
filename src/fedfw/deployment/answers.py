"""The count of all answers that were computed from a data set, private or not, over all runs, names
and restarts; it lies beside the ledger.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from fedfw.deployment.files import open_unshared, wait_for_lock

_DIGITS = 12
_FORM = re.compile(rb"[0-9]{12}\n")


class CountError(ValueError):
    """A count that is missing, or that does not hold what was written."""


@dataclass(frozen=True)
class AnswerCount:
    """The file of one data set, which holds a number.

    Parameters
    ----------
    path : Path
        The file; it must exist before anything is counted, so that a lost one is not taken for an
        empty one.

    Examples
    --------
    >>> import tempfile
    >>> count = AnswerCount(Path(tempfile.mkdtemp()) / "clinic.answers")
    >>> from fedfw.deployment.files import create_private
    >>> create_private(count.path)
    >>> count.add(most=2), count.add(most=2), count.add(most=2)
    (True, True, False)
    >>> count.read()
    2
    """

    path: Path

    def read(self) -> int:
        """Return how many were counted.

        Raises
        ------
        CountError
            If the file is missing, cannot be read, or is damaged.
        """
        try:
            with open(self.path, "rb", opener=open_unshared) as file:
                return self._number(file.read())
        except OSError as error:
            raise self._unusable(error) from None

    def add(self, most: int) -> bool:
        """Increase the count by one, on the disk, unless it has reached its limit.

        Parameters
        ----------
        most : int
            How many are allowed.

        Returns
        -------
        bool
            Whether one more was counted.

        Raises
        ------
        CountError
            If the file is missing, cannot be read or written, or is damaged.
        """
        try:
            with open(self.path, "r+b", buffering=0, opener=open_unshared) as file:
                wait_for_lock(file)
                total = self._number(file.read())
                if total >= most:
                    return False
                file.seek(0)
                # As many bytes as before, in one write: the file is never shorter than a number.
                file.write(b"%0*d\n" % (_DIGITS, total + 1))
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error) from None
        return True

    def _number(self, written: bytes) -> int:
        """Return the number in the file; 0 for an empty file, and an error for anything else."""
        if not written:
            return 0
        if not _FORM.fullmatch(written):
            raise CountError(
                f"{self.path} is damaged: expected a number of {_DIGITS} digits, or nothing for "
                "none yet"
            )
        return int(written)

    def _unusable(self, error: OSError) -> CountError:
        """Return the error for a file that cannot be opened, with the way to begin one."""
        return CountError(
            f"{self.path} cannot be used ({error.strerror}): how many answers were computed from "
            "these data is "
            "unknown. If there were none yet, make an empty file: install -m 600 /dev/null "
            f"{self.path}"
        )
