"""The record of a deployed round."""

from dataclasses import dataclass, field

from fedfw.rounds.records import Record


@dataclass(frozen=True, repr=False)
class DeployedRecord(Record):
    """A round of a deployment, beside what every `Record` has.

    ``loss`` is known one round later and only where clients report it; ``gap`` stays unknown.

    Parameters
    ----------
    invited : int
        How many clients were asked.
    refused : dict of str to int
        Answers that were not accepted, by reason.
    joined, left, restored : list of int
        Clients that came, went, and were handed their memory.
    drift : float
        The largest difference between xbar and the mean of the x_i that the server rebuilt.
    digest : str
        Stands for xbar's bits.
    notes : list of str
        Sentences on what a person should know of the round, such as that it was refused as a whole.
    """

    invited: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    joined: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
    drift: float = 0.0
    digest: str = ""
    notes: list[str] = field(default_factory=list)
