"""Why a client does not do what it is asked for."""

from enum import StrEnum


class Refusal(StrEnum):
    """Why a client does not do what it is asked for. These texts are all that travels; its log has
    the details.
    """

    ALGORITHM = "the owner does not allow this algorithm"
    SHARED = "the owner does not allow what this algorithm shares"
    SET = "the owner does not allow this set"
    SIZE = "the owner does not allow so many parameters"
    PLAIN = "the owner allows private runs alone"
    SEED = "the owner does not allow noise from a seed"
    PROMISE = "the promise is weaker than the owner's budget"
    LEDGER = "the ledger of the data is missing or damaged"
    OPTION = "the owner does not allow the server to set this option"
    RANGE = "an option of the run is out of its range"
    SAMPLES = "the owner does not allow gradients of so few samples"
    STEPS = "the owner does not allow so many local steps"
    ROUNDS = "the owner allows no further rounds"
    COUNT = "the count of rounds is missing or damaged"
    CLIP = "the owner does not allow this bound on samples' gradients"
    LIMITS = "the job takes more memory or time than the owner allows"
    UNCHECKED = "the owner has not checked the data as they are now"

    @classmethod
    def parse(cls, payload: bytes) -> str:
        """Return the text that a client sent, where it is one of these."""
        text = payload.decode(errors="replace")
        return text if text in list(cls) else "for no known reason"


class RefusedError(ValueError):
    """The owner does not allow something; the text is for the owner's own log, ``reason`` is what
    may travel.
    """

    def __init__(self, reason: Refusal, details: str) -> None:
        super().__init__(details)
        self.reason = reason


def require_allowed(holds: object, reason: Refusal, details: str) -> None:
    """Refuse what the owner does not allow."""
    if not holds:
        raise RefusedError(reason, details)
