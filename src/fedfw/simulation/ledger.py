"""The byte ledger: what each round sends, from the real encodings.

Up: each participant's atom. Down: the cheapest of three descriptions of xbar, each self-contained for its receiver:

- ``dense``: all p numbers;
- ``values``: the coordinates that changed since this client last saw xbar, with their new values;
- ``sum``: eta and the sum of the last round's atoms, for clients that saw xbar just before it. Only where atoms are
  sparse, and only the sum: nobody is told another client's atom.

Further vectors that a client keeps, such as ybar, go dense or by the coordinates that changed since it was last there;
an anchor's mean gradient goes dense.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.algorithms.oracle_steps import move_mean
from fedfw.atoms import Atom, SparseAtom, TupleAtom
from fedfw.atoms.bits import Indices, Reader, index_set_nbytes, read_index_set, write_index_set
from fedfw.atoms.floats import floats_to_bytes, read_floats
from fedfw.atoms.mixture import Mixture
from fedfw.errors import AtomError

DENSE, VALUES, SUM = 0, 1, 2
_NO_BITS = np.empty(0, np.uint8)
Rounds = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def encode_dense(x: Tensor) -> bytes:
    """x (p,) whole."""
    return bytes([DENSE]) + floats_to_bytes(x)


def encode_values(x: Tensor, indices: Tensor) -> bytes:
    """The values of x (p,) at ascending ``indices`` (k,)."""
    return bytes([VALUES]) + _sparse(indices, x[indices], len(x))


def encode_sum(keep: float, scale: float, total: Tensor) -> bytes:
    """The step xbar <- keep * xbar + scale * total, with ``total`` (p,) sparse."""
    indices = total.nonzero().flatten()
    rates = np.array([keep, scale], "<f8").tobytes()
    return bytes([SUM]) + rates + _sparse(indices, total[indices], len(total))


def decode_down(data: bytes, known: Tensor) -> Tensor:
    """The new xbar of a client that knows ``known`` (p,)."""
    reader = Reader(data)
    kind = reader.take(1)[0]
    p, dtype = len(known), known.dtype
    if kind == DENSE:
        x = read_floats(reader, (p,), dtype)
    elif kind == VALUES:
        indices, values = _read_sparse(reader, p, dtype)
        x = known.clone()
        x[indices] = values
    elif kind == SUM:
        keep, scale = np.frombuffer(reader.take(16), "<f8").tolist()
        indices, values = _read_sparse(reader, p, dtype)
        total = torch.zeros_like(known)
        total[indices] = values
        x = move_mean(known, keep, scale, total)
    else:
        raise AtomError(f"message kind {kind}, expected 0 to 2")
    reader.finish()
    return x


def _sparse(indices: Tensor, values: Tensor, p: int) -> bytes:
    places = indices.cpu().numpy()
    return len(places).to_bytes(4, "big") + write_index_set(places, p, _NO_BITS) + floats_to_bytes(values)


def _read_sparse(reader: Reader, p: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    k = int.from_bytes(reader.take(4), "big")
    if k > p:
        raise AtomError(f"{k} coordinates of {p}")
    indices, _ = read_index_set(reader, p, k, 0)
    return torch.from_numpy(indices), read_floats(reader, (k,), dtype)


def sparse_nbytes(indices: Tensor, p: int, itemsize: int) -> int:
    """Length of `encode_values` for k ascending indices."""
    return _sparse_nbytes(indices.cpu().numpy(), p, itemsize)


def _sparse_nbytes(places: Indices, p: int, itemsize: int) -> int:
    return 1 + 4 + index_set_nbytes(places[None], p, 0) + len(places) * itemsize


class Ledger:
    """Counts what the messages of a run weigh."""

    def __init__(self, n: int, xbar: Tensor) -> None:
        self.p, self.itemsize = len(xbar), xbar.element_size()
        self.last_seen = np.zeros(n, np.int64)  # round in which a client last got xbar; 0: never
        self.last_changed = np.zeros(self.p, np.int64)  # round whose step last changed a coordinate
        self.sum_nbytes: int | None = None  # of the last step, when everyone took it
        self.sum_round = 0  # the round of that step
        self._last_step: tuple[int, Mask, Mask | None] | None = None
        self.vectors: dict[str, Tensor] = {}  # further vectors (p,) as last sent; one that is not sent is zero
        self.vectors_changed: dict[str, Rounds] = {}  # round whose message last changed a coordinate of them

    @property
    def dense_nbytes(self) -> int:
        """One vector of p numbers with its tag."""
        return 1 + self.p * self.itemsize

    def down(self, t: int, who: Tensor, vectors: Mapping[str, Tensor], dense: int, model: bool = True) -> int:
        """Bytes to tell the clients ``who`` xbar and further vectors at the start of round t, and ``dense`` dense ones.

        Where clients never get the model, they get x^1 once.
        """
        self._settle()
        self._note(t, vectors)
        clients = who.numpy()
        total = dense * self.dense_nbytes * len(clients)
        for since, count in Counter(self.last_seen[clients].tolist()).items():
            a_client = sum(self._nbytes(self.vectors_changed[name] > since, since) for name in vectors)
            if model:
                by_sum = self.sum_nbytes if since == self.sum_round else None
                a_client += self._nbytes(self.last_changed >= since, since, by_sum)
            elif not since:
                a_client += self.dense_nbytes
            total += count * a_client
        self.last_seen[clients] = t
        return total

    def _note(self, t: int, vectors: Mapping[str, Tensor]) -> None:
        """Which coordinates of the further vectors the message of round t changes."""
        for name in {**self.vectors, **vectors}:
            zero = torch.zeros(self.p)
            before, after = self.vectors.get(name, zero), vectors[name].cpu() if name in vectors else zero
            marks = self.vectors_changed.setdefault(name, np.zeros(self.p, np.int64))
            marks[(before.to(after.dtype) != after).numpy()] = t
            self.vectors[name] = after.clone()

    def _nbytes(self, changed: Mask, since: int, otherwise: int | None = None) -> int:
        """Of a vector for a client that last saw it in round ``since``: its changed coordinates (p,), or all of it.

        Or ``otherwise``, the length of another description for those who ever saw it.
        """
        if not since:
            return self.dense_nbytes
        shortest = self.dense_nbytes if otherwise is None else min(otherwise, self.dense_nbytes)
        values = 5 + int(np.count_nonzero(changed)) * self.itemsize  # without saying where they belong
        if values >= shortest:
            return shortest
        return min(shortest, _sparse_nbytes(np.flatnonzero(changed), self.p, self.itemsize))

    def step(self, t: int, changed: Tensor, support: Tensor | None = None) -> None:
        """Note what round t did to xbar: which coordinates (p,) changed, and in which the sum of the atoms is not zero.

        ``support`` is for rounds in which everyone sent a sparse atom.
        """
        self._settle()
        self._last_step = t, changed.numpy().copy(), None if support is None else support.numpy().copy()

    def _settle(self) -> None:
        """Work out the last step: the next message asks for it, and by then a GPU is busy with the next round."""
        if self._last_step is None:
            return
        (t, changed, support), self._last_step = self._last_step, None
        self.last_changed[changed] = t
        self.sum_round, self.sum_nbytes = t, None
        if support is not None:  # the sum's message has two rates (16 bytes) in front of the coordinates
            self.sum_nbytes = 16 + _sparse_nbytes(np.flatnonzero(support), self.p, self.itemsize)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        self._settle()
        return {
            "last_seen": torch.from_numpy(self.last_seen),
            "last_changed": torch.from_numpy(self.last_changed),
            "sum": torch.tensor([self.sum_round, -1 if self.sum_nbytes is None else self.sum_nbytes]),
            **{f"vector.{name}": value for name, value in self.vectors.items()},
            **{f"changed.{name}": torch.from_numpy(value) for name, value in self.vectors_changed.items()},
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        self._last_step = None
        held = {name: value.clone() for name, value in state.items()}
        self.last_seen, self.last_changed = held["last_seen"].numpy(), held["last_changed"].numpy()
        self.sum_round, stored = held["sum"].tolist()
        self.sum_nbytes = None if stored < 0 else stored
        self.vectors = {key[len("vector.") :]: value for key, value in held.items() if key.startswith("vector.")}
        changed = {key[len("changed.") :]: v.numpy() for key, v in held.items() if key.startswith("changed.")}
        self.vectors_changed = changed


def support(atoms: list[Atom], like: Tensor) -> Tensor | None:
    """Where the sum of sparse atoms is not zero, (p,) of bool; None where atoms are not sparse."""
    if not all(_is_sparse(atom) for atom in atoms):
        return None
    total = torch.zeros_like(like)
    for atom in atoms:
        atom.add_sum_to(total)
    return total != 0


def _is_sparse(atom: Atom) -> bool:
    if isinstance(atom, Mixture | TupleAtom):
        return all(_is_sparse(part) for part in atom.parts)
    return isinstance(atom, SparseAtom)
