"""The clients' memories between rounds: a row for everyone, or only the rows that differ from the start.

In a simulation these are the memories themselves, in a deployment what the server rebuilt of them. Where few of many
registered clients ever take part, untouched clients share one row, and a touched client's row is kept by its non-zero
entries while that is smaller. Both forms give back the same bits, but for the sign of zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from fedfw.algorithms.base import State

_CHUNK = 4096


class ClientMemory(ABC):
    """The clients' memories, by name: x, y, d ..."""

    n: int

    @abstractmethod
    def gather(self, rows: Tensor) -> State:
        """The memories (m, ...) of the clients ``rows`` (m,), which are ascending: n of them are all, in order."""

    @abstractmethod
    def scatter(self, rows: Tensor, state: State) -> None:
        """Replace them."""

    @abstractmethod
    def spread(self, xbar: Tensor) -> float:
        """The sum over all clients of ||x_i - xbar||^2."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""

    @abstractmethod
    def load(self, held: dict[str, Tensor]) -> None:
        """The inverse of `state`."""


class EveryRow(ClientMemory):
    """Tensors (n, ...)."""

    def __init__(self, rows: State) -> None:
        self.rows, self.n = rows, len(rows["x"])

    def gather(self, rows: Tensor) -> State:
        if len(rows) == self.n:
            return self.rows
        return {name: values[rows] for name, values in self.rows.items()}

    def scatter(self, rows: Tensor, state: State) -> None:
        if len(rows) == self.n:
            self.rows = self.rows | state
            return
        for name, values in state.items():
            self.rows[name][rows] = values

    def spread(self, xbar: Tensor) -> float:
        return float((self.rows["x"] - xbar).square_().sum(dtype=torch.float64))

    def insert(self, row: int, newcomer: State) -> None:
        """Put one more client, a stack of one, in front of ``row``."""
        self.rows = {
            name: torch.cat([values[:row], newcomer[name], values[row:]]) for name, values in self.rows.items()
        }
        self.n += 1

    def remove(self, row: int) -> None:
        """Forget a client."""
        self.rows = {name: torch.cat([values[:row], values[row + 1 :]]) for name, values in self.rows.items()}
        self.n -= 1

    def state(self) -> dict[str, Tensor]:
        return self.rows

    def load(self, held: dict[str, Tensor]) -> None:
        self.rows, self.n = held, len(held["x"])


class _Table:
    """Rows (count, width) that grow: padded lists of non-zero entries while they are short, else dense."""

    def __init__(self, row: Tensor) -> None:
        self.row = row  # (width,) what untouched clients hold
        width = len(row)
        # A row that is zero nowhere gains nothing; nor do a few numbers.
        self.sparse = width > 16 and row.is_floating_point() and not bool(row.any())
        self.columns = torch.zeros(0, 1 if self.sparse else 0, dtype=torch.int32, device=row.device)
        self.values = row.new_zeros(0, 1 if self.sparse else width)

    def grow(self, count: int) -> None:
        """Room for at least so many rows."""
        there = len(self.values)
        if count > there:
            more = max(count, 2 * there) - there
            self.values = torch.cat([self.values, self.values.new_zeros(more, self.values.shape[1])])
            self.columns = torch.cat([self.columns, self.columns.new_zeros(more, self.columns.shape[1])])

    def read(self, slots: Tensor) -> Tensor:
        """(m, width) at slots (m,); -1 stands for an untouched client."""
        known = slots >= 0
        if self.sparse:
            rows = self.row.new_zeros(len(slots), len(self.row))
            if bool(known.any()):
                at = slots[known]
                # Padding is value zero at column zero: adding leaves what is there.
                rows[known] = rows[known].scatter_add_(1, self.columns[at].long(), self.values[at])
            return rows
        rows = self.row.expand(len(slots), -1).clone()
        rows[known] = self.values[slots[known]]
        return rows

    def write(self, slots: Tensor, rows: Tensor) -> None:
        if self.sparse:
            at, columns = rows.nonzero(as_tuple=True)
            counts = torch.bincount(at, minlength=len(rows))
            longest = max(1, int(counts.max()))
            if 2 * longest > len(self.row):
                self._make_dense()
            else:
                self._widen(longest)
                place = torch.arange(len(at), device=at.device) - (counts.cumsum(0) - counts)[at]
                self.columns[slots], self.values[slots] = 0, 0.0
                self.columns[slots[at], place] = columns.int()
                self.values[slots[at], place] = rows[at, columns]
                return
        self.values[slots] = rows

    def _widen(self, longest: int) -> None:
        more = longest - self.values.shape[1]
        if more > 0:
            self.values = torch.cat([self.values, self.values.new_zeros(len(self.values), more)], 1)
            self.columns = torch.cat([self.columns, self.columns.new_zeros(len(self.columns), more)], 1)

    def _make_dense(self) -> None:
        dense = self.row.new_zeros(len(self.values), len(self.row))
        for part in _chunks(len(dense), dense.device):
            dense[part] = self.read(part)
        self.sparse, self.values, self.columns = False, dense, self.columns.new_zeros(len(dense), 0)


def _chunks(count: int, device: torch.device) -> Iterator[Tensor]:
    for begin in range(0, count, _CHUNK):
        yield torch.arange(begin, min(count, begin + _CHUNK), device=device)


class TouchedRows(ClientMemory):
    """Rows of the clients that took part; all others are as they began, at ``start``, one client's memory (1, ...)."""

    def __init__(self, n: int, start: State) -> None:
        self.n = n
        self._tables = {name: _Table(values[0]) for name, values in start.items()}
        self._slots = torch.full((n,), -1, dtype=torch.int32, device=start["x"].device)
        self._touched: list[Tensor] = []
        self._count = 0

    def gather(self, rows: Tensor) -> State:
        slots = self._slots[rows].long()
        return {name: table.read(slots) for name, table in self._tables.items()}

    def scatter(self, rows: Tensor, state: State) -> None:
        new = rows[self._slots[rows] < 0]
        self._slots[new] = torch.arange(
            self._count, self._count + len(new), dtype=torch.int32, device=self._slots.device
        )
        self._touched.append(new)
        self._count += len(new)
        slots = self._slots[rows].long()
        for name, table in self._tables.items():
            table.grow(self._count)
            table.write(slots, state[name])

    def spread(self, xbar: Tensor) -> float:
        table = self._tables["x"]
        total = (self.n - self._count) * float((table.row - xbar).double().square().sum())
        for part in _chunks(self._count, xbar.device):
            total += float((table.read(part) - xbar).square_().sum(dtype=torch.float64))
        return total

    def state(self) -> dict[str, Tensor]:
        held = {"touched": torch.cat(self._touched) if self._touched else self._slots[:0].long()}
        for name, table in self._tables.items():
            held |= {f"{name}.values": table.values[: self._count], f"{name}.columns": table.columns[: self._count]}
        return held

    def load(self, held: dict[str, Tensor]) -> None:
        touched = held["touched"]
        self._touched, self._count = [touched], len(touched)
        self._slots[touched] = torch.arange(len(touched), dtype=torch.int32, device=touched.device)
        for name, table in self._tables.items():
            table.values, table.columns = held[f"{name}.values"], held[f"{name}.columns"]
            table.sparse = table.columns.shape[1] > 0


def load_memory(memory: ClientMemory, start: State, held: dict[str, Tensor]) -> ClientMemory:
    """The memory of a checkpoint, in the form in which it was kept: a longer run may have chosen another one.

    ``start`` is the memory (1, ...) of a client that has not taken part yet.
    """
    if "touched" in held and not isinstance(memory, TouchedRows):
        memory = TouchedRows(memory.n, start)
    elif "touched" not in held and not isinstance(memory, EveryRow):
        memory = EveryRow(held)
    memory.load(held)
    return memory
