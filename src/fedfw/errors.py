"""The errors fedfw raises on purpose, each naming the bad value and what was expected."""

from __future__ import annotations

from collections.abc import Sequence


class NonFiniteError(ValueError):
    """A NaN or an infinity where a finite tensor was expected.

    ``rows`` lists the offending rows of the stack (the clients).
    """

    def __init__(self, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)


class AtomError(ValueError):
    """Bytes that are not the encoding of an atom of the given set and shape."""


class NoProjectionError(NotImplementedError):
    """The set has a linear minimization oracle but no projection."""


class MessageError(ValueError):
    """A message that is not what was agreed upon."""
