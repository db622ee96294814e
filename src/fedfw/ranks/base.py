"""A rank as all code sees it, and the rank of a process that shares its simulation with no
other.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fedfw.ranks.queue import Queue

Tensors = dict[str, Tensor]


class Ranks:
    """The processes of a simulation. This class is a single process: collectives are identities.

    Attributes
    ----------
    rank, size : int
        The number of this process, from 0, and how many there are.
    sent, exchanges : int
        Bytes that this rank has given to exchanges so far, and how many there were.

    Examples
    --------
    >>> import torch
    >>> alone = Ranks()
    >>> alone.first, alone.sums(torch.ones(2))[0].tolist(), alone.all_gather_object("here")
    (True, [1.0, 1.0], ['here'])
    """

    rank = 0
    size = 1

    def __init__(self) -> None:
        """A process alone has sent nothing."""
        self.sent = self.exchanges = 0

    @property
    def first(self) -> bool:
        """Return whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    def sums(self, *tensors: Tensor) -> list[Tensor]:
        """Return the sums over ranks of tensors that have the same shapes everywhere, in one
        exchange a type.
        """
        return list(tensors)

    def numbers(self, *numbers: float) -> list[list[float]]:
        """Return some numbers of every rank, as many from each; integers are exact up to 2^53."""
        return [list(numbers)]

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the value of every rank; anything that JSON can hold."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """Return the value of rank 0, on every rank; what others give is not looked at."""
        return value

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Tensors:
        """Return the tensors of rank 0, on every rank, in the host's memory; others give None."""
        return dict(tensors or {})

    @contextmanager
    def local_only(self, who: str) -> Iterator[None]:
        """Refuse exchanges within: what is done here is done on this rank alone, and an exchange
        would wait for the others for ever.

        ``who`` says what is at work, for the message of the error.
        """
        yield

    def queue(self) -> Queue:
        """Return tasks that the ranks share, for work that is divided by tasks, not by clients."""
        return Queue()

    def gather_to_root(self, tensors: Mapping[str, Tensor]) -> list[Tensors]:
        """Return the tensors of every rank, at rank 0 and in the host's memory; an empty list at
        the others.
        """
        return [dict(tensors)]


ALONE = Ranks()
"""A process that shares its simulation with no other."""
