"""How a training is deployed, and what its server remembers of each round."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fedfw.simulation.history import Record


@dataclass(frozen=True)
class Deployment:
    """How a training is deployed, beside the task.

    Parameters
    ----------
    out
        The server's folder for history, model and a checkpoint a round; None for none.
    run
        A name for people; clients keep their memory by it and a random suffix.
    resume
        Go on from the last checkpoint in ``out``.
    tell
        Ask clients for f_i(xbar) and their number for the certificate.
    share_gradients
        Allow anchored FedFW, whose clients send gradients in the clear.
    leave_after
        Rounds in a row without a counted answer after which a client is taken to have left; 0 for never.
    """

    out: Path | None = None
    run: str = "run"
    resume: bool = False
    tell: bool = False
    share_gradients: bool = False
    leave_after: int = 0

    def __post_init__(self) -> None:
        if not self.run or any(not (c.isalnum() or c in "-_") for c in self.run):
            raise ValueError(f"run={self.run!r}, expected letters, digits, '-' and '_'")
        if self.leave_after < 0:
            raise ValueError(f"leave_after={self.leave_after}, expected at least 0")
        if self.resume and self.out is None:
            raise ValueError("resume needs the folder to go on from")


@dataclass(frozen=True)
class DeployedRecord(Record):
    """A round of a deployment.

    ``loss`` is known one round later and only where clients tell it; ``gap`` stays unknown. ``refused`` counts answers
    that were not accepted, by reason. ``drift`` is the largest difference between xbar and the mean of the x_i that
    the server rebuilt, and ``digest`` stands for xbar's bits.
    """

    invited: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    joined: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
    drift: float = 0.0
    digest: str = ""
