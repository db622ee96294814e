"""The clients' memories between rounds: a row for everyone, or only the rows that differ from the
start.

In a simulation these are the memories themselves, in a deployment what the server rebuilt of them.
Where few of many registered clients ever take part, untouched clients share one row, and of a
touched client's row the entries are kept that differ from it. A deployed server keeps few columns
where atoms are sparse (`fedfw.rounds.columns`). All forms give back the same bits, but for the sign
of zeros.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.algorithms.contract import Message, State
from fedfw.ranks import Ranks
from fedfw.rounds.channels import Sent

_CHUNK = 4096


Entries = tuple[npt.NDArray[np.int32], npt.NDArray[Any]]
"""The columns of a row at which it has other entries than at the start, and these entries."""


class ClientMemory(ABC):
    """The clients' memories, by name: x, y, d ..."""

    n: int
    columns: Tensor | None = None
    """The coordinates (w,) outside of which all clients hold zero; None for all."""

    @abstractmethod
    def gather(self, rows: Tensor) -> State:
        """The memories (m, ...) of the clients ``rows`` (m,), which are ascending: n of them are
        all, in order.
        """

    @abstractmethod
    def scatter(self, rows: Tensor, state: State) -> None:
        """Replace them."""

    def view(self, rows: Tensor) -> State:
        """Return the memories (m, w) of the clients ``rows`` at the columns."""
        return self.gather(rows)

    def put(self, rows: Tensor, state: State) -> None:
        """Replace them."""
        self.scatter(rows, state)

    def narrow(self, message: Message, sent: Sent) -> tuple[Message, Sent]:
        """Return a message and what clients sent in answer at the columns, to which those are added
        that the payloads name.
        """
        return message, sent

    @abstractmethod
    def spread(self, xbar: Tensor) -> float:
        """Return the sum over all clients of ||x_i - xbar||^2."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold."""

    @abstractmethod
    def load(self, saved: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""


class EveryRow(ClientMemory):
    """Tensors (n, ...)."""

    def __init__(self, rows: State, n: int) -> None:
        self.rows = rows
        self.n = n

    def gather(self, rows: Tensor) -> State:
        """Return the states (m, ...) of these clients by name."""
        if rows.shape[0] == self.n:
            return self.rows
        return {name: values[rows] for name, values in self.rows.items()}

    def scatter(self, rows: Tensor, state: State) -> None:
        """Write the states (m, ...) of these clients; those of all clients take the place of the
        tensors.
        """
        if rows.shape[0] == self.n:
            self.rows = self.rows | state
            return
        for name, values in state.items():
            self.rows[name][rows] = values

    def spread(self, xbar: Tensor) -> float:
        return float((self.rows["x"] - xbar).square_().sum(dtype=torch.float64))

    def insert(self, row: int, newcomer: State) -> None:
        """Put one more client, a stack of one, in front of ``row``."""
        self.rows = {
            name: torch.cat([values[:row], newcomer[name], values[row:]])
            for name, values in self.rows.items()
        }
        self.n += 1

    def remove(self, row: int) -> None:
        """Forget a client."""
        self.rows = {
            name: torch.cat([values[:row], values[row + 1 :]]) for name, values in self.rows.items()
        }
        self.n -= 1

    def state(self) -> dict[str, Tensor]:
        return self.rows

    def load(self, saved: dict[str, Tensor]) -> None:
        self.rows = saved


class TouchedRows(ClientMemory):
    """Rows of the clients that took part; all others are as they began, at ``start``, one client's
    memory (1, ...).

    Of a row the entries are kept, in the host's memory, that differ from those at the start.
    """

    def __init__(self, n: int, start: State) -> None:
        """Keep the start on the host; no client has taken part yet."""
        self.n = n
        devices = [values.device for values in start.values()]
        self._device = devices[0] if devices else torch.device("cpu")
        self._start = {name: values[0].cpu() for name, values in start.items()}
        self.entries: dict[int, dict[str, Entries]] = {}

    def gather(self, rows: Tensor) -> State:
        """Return the memory (m, w) of these clients by name: the start, with the entries that
        differ from it.
        """
        state = {}
        for name, start in self._start.items():
            values = start.repeat(len(rows), 1)
            array = values.numpy()
            for row, client in enumerate(rows.tolist()):
                if client in self.entries:
                    columns, entries = self.entries[client][name]
                    array[row, columns] = entries
            state[name] = values.to(self._device)
        return state

    def scatter(self, rows: Tensor, state: State) -> None:
        """Keep the entries of these clients' memory (m, w) that differ from the start."""
        for name, start in self._start.items():
            start_row = start.numpy()
            for client, row in zip(rows.tolist(), state[name].to(start).numpy(), strict=True):
                columns = np.flatnonzero(row != start_row).astype(np.int32)
                self.entries.setdefault(client, {})[name] = columns, row[columns]

    def spread(self, xbar: Tensor) -> float:
        """Return the sum over all clients of ||x_i - xbar||^2."""
        untouched = self.n - len(self.entries)
        total = untouched * float((self._start["x"].to(xbar.device) - xbar).double().square().sum())
        for clients in torch.split(torch.tensor(list(self.entries), dtype=torch.int64), _CHUNK):
            total += float((self.gather(clients)["x"] - xbar).square_().sum(dtype=torch.float64))
        return total

    def state(self) -> dict[str, Tensor]:
        """Return the kept entries as tensors: the clients that took part, and for each name the
        number of entries of each client, their columns, and their values, one client behind the
        other.
        """
        saved = {"touched": torch.tensor(list(self.entries), dtype=torch.int64)}
        for name, start in self._start.items():
            entries_of_clients = [of_name[name] for of_name in self.entries.values()]
            saved[f"{name}.counts"] = torch.tensor(
                [len(columns) for columns, _ in entries_of_clients], dtype=torch.int64
            )
            columns = [columns for columns, _ in entries_of_clients]
            saved[f"{name}.columns"] = torch.from_numpy(
                np.concatenate([np.zeros(0, np.int32), *columns])
            )
            values = [entries for _, entries in entries_of_clients]
            saved[f"{name}.values"] = torch.from_numpy(np.concatenate([start[:0].numpy(), *values]))
        return saved

    def load(self, saved: dict[str, Tensor]) -> None:
        """Take over the entries that `state` returned: columns and values of all clients in a row
        are cut by each client's count.
        """
        clients = saved["touched"].tolist()
        # Client -> name -> the columns and the values that differ from the start.
        self.entries = {client: {} for client in clients}
        for name in self._start:
            # counts[i] of the columns and of the values belong to client i.
            counts = saved[f"{name}.counts"].tolist()
            columns = torch.split(saved[f"{name}.columns"].cpu(), counts)
            values = torch.split(saved[f"{name}.values"].cpu(), counts)
            for client, client_columns, client_values in zip(clients, columns, values, strict=True):
                self.entries[client][name] = client_columns.numpy(), client_values.numpy()


def load_memory(
    memory: ClientMemory, start: State, saved: dict[str, Tensor], n: int
) -> ClientMemory:
    """Return the memory of a checkpoint with n clients, in the form in which it was saved: a longer
    run may have chosen another one.

    ``start`` is the memory (1, ...) of a client that has not taken part yet.
    """
    if "touched" in saved and not isinstance(memory, TouchedRows):
        dtypes = {name: saved[f"{name}.values"].dtype for name in start}
        # A private run keeps averages in float64.
        memory = TouchedRows(n, {name: values.to(dtypes[name]) for name, values in start.items()})
    elif "touched" not in saved and not isinstance(memory, EveryRow):
        memory = EveryRow(saved, n)
    memory.load(saved)
    memory.n = n
    return memory


class SplitMemory(ClientMemory):
    """The memories of n clients, of which this rank has its own.

    A checkpoint has the rows of all clients, in their order, and is the same file that one process
    writes: any number of ranks goes on from it.

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
        return float(
            self._ranks.sums(torch.tensor(self.inner.spread(xbar), dtype=torch.float64))[0]
        )

    def state(self) -> dict[str, Tensor]:
        """Return the memory of all clients at rank 0, and nothing at the others."""
        saved = dict(self.inner.state())
        if "touched" in saved:
            saved["touched"] = saved["touched"] + self.own.start
        of_ranks = self._ranks.gather_to_root(saved)
        if not of_ranks:
            return {}
        return {name: torch.cat([of_rank[name] for of_rank in of_ranks]) for name in saved}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Take over this rank's clients from the memory of all clients."""
        if "touched" not in saved:
            rows = slice(self.own.start, self.own.stop)
            values = {name: value[rows] for name, value in saved.items()}
            self.inner = load_memory(self.inner, self._start, values, len(self.own))
            return
        all_clients = TouchedRows(self.n, self._start)
        own_rows = TouchedRows(len(self.own), self._start)
        all_clients.load(saved)
        own_rows.entries = {
            client - self.own.start: row
            for client, row in all_clients.entries.items()
            if client in self.own
        }
        self.inner = own_rows
