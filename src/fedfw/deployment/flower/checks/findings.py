"""Results of checks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from fedfw.terminal import escape_controls

Looked = TypeVar("Looked")

LIMITS = (
    "Any login on the SuperLink's host controls the federation: Flower has no accounts.",
    "The server's half of an app is never verified: who controls the SuperLink runs code there.",
    "A signature never expires and does not cover a run's options: an old bundle can be run again, "
    "with other options.",
    "A node signs the time of its calls (good for 305 s), not their contents: TLS protects those.",
    "Flower's own executors, which the SuperLink has, write tokens of tasks into the arguments of "
    "processes.",
    "A SuperNode's port 9094 answers every process on its own host.",
)
"""Limits of Flower, however a federation is set up."""


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    FAIL = "FAIL"
    UNKNOWN = "cannot be checked"


@dataclass(frozen=True)
class Finding:
    """One line of the result.

    Parameters
    ----------
    verdict : Verdict
        How it ended.
    what : str
        What was looked at, and why it ended so.

    Examples
    --------
    >>> print(Finding(Verdict.FAIL, "list-runs answers 200"))
    FAIL: list-runs answers 200
    """

    verdict: Verdict
    what: str

    def __str__(self) -> str:
        # What was looked at may have answered with control characters.
        return f"{self.verdict}: {escape_controls(' '.join(self.what.splitlines()))}"


class FailedCheckError(Exception):
    """Something that a check looked at is not as it must be."""


def require(holds: object, failure: str) -> None:
    """Fail the check with these words where something does not hold."""
    if not holds:
        raise FailedCheckError(failure)


def findings(checks: Iterable[Callable[[Looked], str]], looked_at: Looked) -> list[Finding]:
    """Return the results of a list of checks; one that cannot reach or read what it looks at says
    so.

    Parameters
    ----------
    checks : iterable of callable
        Such as `fedfw.deployment.flower.checks.NODE_CHECKS`.
    looked_at : object
        What each of them is called with.
    """
    results = []
    for check in checks:
        try:
            results.append(Finding(Verdict.OK, check(looked_at)))
        except FailedCheckError as failure:
            results.append(Finding(Verdict.FAIL, str(failure)))
        except (OSError, ValueError) as error:
            about = (check.__doc__ or check.__name__).splitlines()[0].rstrip(".")
            results.append(Finding(Verdict.UNKNOWN, f"{about} ({error})"))
    return results
