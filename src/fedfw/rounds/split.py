"""The clients' memories where several ranks share a run: each keeps the rows of its own clients.

A checkpoint has the rows of all clients, in their order, and is the same file that one process writes: any number of
ranks goes on from it.
"""

import torch
from torch import Tensor

from fedfw.algorithms.base import State
from fedfw.ranks import Ranks
from fedfw.rounds.memory import ClientMemory, TouchedRows, load_memory

_AT_ONCE = 4096
"""Rows that are copied at a time."""


class SplitMemory(ClientMemory):
    """The memories of n clients, of which this rank has its own.

    Parameters
    ----------
    inner : ClientMemory
        Of this rank's clients.
    own : range
        Their numbers.
    n : int
        How many clients all ranks have.
    start : dict of str to Tensor
        The memory (1, ...) of a client that has not taken part yet.
    ranks : Ranks
        The processes that share the run.
    """

    def __init__(self, inner: ClientMemory, own: range, n: int, start: State, ranks: Ranks) -> None:
        self.inner, self.own, self.n, self._start, self._ranks = inner, own, n, start, ranks

    def gather(self, rows: Tensor) -> State:
        return self.inner.gather(rows - self.own.start)

    def scatter(self, rows: Tensor, state: State) -> None:
        self.inner.scatter(rows - self.own.start, state)

    def spread(self, xbar: Tensor) -> float:
        return float(self._ranks.sums(torch.tensor(self.inner.spread(xbar), dtype=torch.float64))[0])

    def state(self) -> dict[str, Tensor]:
        """The rows of all clients, at rank 0; nothing at the others."""
        few = isinstance(self.inner, TouchedRows)
        begin = torch.tensor(self.own.start)
        each = self._ranks.collect(self.inner.state() | {"begin": begin, "count": torch.tensor(len(self.own))})
        if not each:
            return {}
        if not few:
            return {name: torch.cat([theirs[name] for theirs in each]) for name in self.inner.state()}
        on_host = {name: value.cpu() for name, value in self._start.items()}
        whole = TouchedRows(self.n, on_host)
        for theirs in each:
            part = TouchedRows(int(theirs.pop("count")), on_host)
            first = int(theirs.pop("begin"))
            part.load(theirs)
            _copy(part, theirs["touched"], whole, first)
        return whole.state()

    def load(self, held: dict[str, Tensor]) -> None:
        if "touched" not in held:
            rows = slice(self.own.start, self.own.stop)
            self.inner = load_memory(self.inner, self._start, {name: value[rows] for name, value in held.items()})
            return
        whole, inner = TouchedRows(self.n, self._start), TouchedRows(len(self.own), self._start)
        whole.load(held)
        touched = held["touched"]
        mine = touched[(touched >= self.own.start) & (touched < self.own.stop)]
        _copy(whole, mine, inner, -self.own.start)
        self.inner = inner


def _copy(source: ClientMemory, rows: Tensor, target: ClientMemory, offset: int) -> None:
    """Rows (m,) of one memory become the rows that are so many further on in another one."""
    for some in torch.split(rows, _AT_ONCE):
        target.scatter(some + offset, source.gather(some))
