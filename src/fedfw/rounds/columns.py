"""A deployed server's copies of its clients on few coordinates: those that any client touched.

Sparse atoms leave most coordinates of all points zero. An algorithm that treats every coordinate
alone (`treats_coordinates_alone`) gives the same bits on the others, in less time and memory.
Columns are integers (w,); None stands for all coordinates.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedfw.algorithms.contract import Algorithm, Message, State
from fedfw.atoms import Atom, Mixture, SparseAtom, SparseValues, TupleAtom, is_sparse
from fedfw.rounds.channels import REPORT, Sent
from fedfw.rounds.memory import EveryRow

_BLOCK = 64
"""torch adds up the columns of a stack in blocks, the largest of which have so many columns."""


def on_columns(vector: Tensor, columns: Tensor | None) -> Tensor:
    """The entries (..., w) of vectors (..., p) at the columns.

    Examples
    --------
    >>> import torch
    >>> on_columns(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 0])).tolist()
    [3.0, 1.0]
    """
    return vector if columns is None else vector[..., columns]


def spread_out(entries: Tensor, columns: Tensor | None, p: int) -> Tensor:
    """Return vectors (..., p) that have these entries (..., w) at the columns and zeros elsewhere.

    Examples
    --------
    >>> import torch
    >>> spread_out(torch.tensor([3.0, 1.0]), torch.tensor([2, 0]), 4).tolist()
    [1.0, 0.0, 3.0, 0.0]
    """
    if columns is None:
        return entries
    vectors = entries.new_zeros(*entries.shape[:-1], p)
    vectors[..., columns] = entries
    return vectors


def narrow_message(message: Message, columns: Tensor | None) -> Message:
    """Return a message at the columns."""
    if columns is None:
        return message
    vectors = {name: vector[columns] for name, vector in message.vectors.items()}
    return replace(message, vectors=vectors)


def treats_coordinates_alone(algorithm: Algorithm) -> bool:
    """Return whether this very class says that its functions treat every coordinate alone, and
    leave it zero where points, atoms and vectors are zero.

    A class says so for itself by ``coordinatewise = True``: subclasses, which may change these
    functions, do not inherit it.
    """
    return bool(vars(type(algorithm)).get("coordinatewise", False))


def touched_by(sent: Sent) -> Tensor | None:
    """Return the coordinates that the atoms sent name, some of them more than once; None if any
    atom is dense, so that all may be touched.
    """
    points = [atoms for name, atoms in sent.items() if name != REPORT]
    if not all(is_sparse(atoms) for atoms in points):
        return None
    coordinates = []
    for atoms in points:
        coordinates += [indices.flatten() for _, indices, _ in _terms(atoms, torch.float32)]
    return torch.cat(coordinates)


def narrow_atoms(atoms: Atom, place: Tensor, width: int, dtype: torch.dtype) -> Atom:
    """Return sparse atoms as vectors (m, width), where coordinate j is in column ``place[j]``;
    steps with them give the same bits.

    Parameters
    ----------
    atoms : Atom
        A stack of m sparse atoms.
    place : Tensor
        (p,), integers.
    width : int
        How many columns there are.
    dtype : torch.dtype
        Of the points that they will move.
    """
    terms = list(_terms(atoms, dtype))
    parts = tuple(
        SparseValues(
            shape=(width,),
            batched=True,
            precision=dtype,
            indices=place[indices],
            values=values,
            scale=1.0,
        )
        for _, indices, values in terms
    )
    weights = tuple(share for share, _, _ in terms)
    return Mixture(shape=(width,), batched=True, precision=dtype, parts=parts, weights=weights)


def _terms(
    atom: Atom, dtype: torch.dtype, offset: int = 0, share: float = 1.0
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Yield (share, coordinates (m, k), values (m, k)) of each sparse part of a stack of atoms, in
    order; their weighted sum is the stack.
    """
    if isinstance(atom, Mixture):
        for part, weight in zip(atom.parts, atom.weights, strict=True):
            yield from _terms(part, dtype, offset, share * weight)
    elif isinstance(atom, TupleAtom):
        # The parts of a tuple lie behind each other in the flat vector.
        for part in atom.parts:
            yield from _terms(part, dtype, offset, share)
            offset += prod(part.shape)
    else:
        assert isinstance(atom, SparseAtom)
        indices, values = atom.entries(dtype)
        yield share, indices + offset, values


class TouchedColumns(EveryRow):
    """Tensors (n, w) of the coordinates that any client touched; elsewhere all clients hold zero.

    Once that is more than half of all coordinates, they are all kept. torch adds up columns in
    blocks, and in another order in the last block if that is not full. So that sums over clients
    have the bits that they have in a stack (n, p), the coordinates of that last block (the tail)
    are always kept, behind full blocks of others.

    Parameters
    ----------
    n : int
        How many clients there are.
    start : dict of str to Tensor
        The memory of a client that has not taken part yet, (1, p) each.

    Examples
    --------
    >>> import torch
    >>> memory = TouchedColumns(2, {"x": torch.zeros(1, 1000)})
    >>> memory.scatter(torch.tensor([0]), {"x": torch.eye(1000)[[500]]})
    >>> int(memory.columns[0]), memory.rows["x"].shape
    (500, torch.Size([2, 104]))
    """

    def __init__(self, n: int, start: State) -> None:
        """Keep the coordinates that are not zero at the start, in n equal rows."""
        self._p = start["x"].shape[1]
        self._tail = torch.arange(self._p - self._p % _BLOCK, self._p)
        used = _nonzero_columns(start)
        self._keep(used[used < self._p - len(self._tail)])
        narrow = {name: on_columns(values, self.columns) for name, values in start.items()}
        super().__init__({name: values.repeat(n, 1) for name, values in narrow.items()}, n)

    def _keep(self, touched: Tensor) -> None:
        """Set the coordinates that are kept: ``touched`` (k,), others that fill up their last
        block, and the tail; all of them where these are more than half.
        """
        self._touched = touched
        is_untouched = torch.ones(self._p - len(self._tail), dtype=torch.bool)
        is_untouched[touched] = False
        padding = is_untouched.nonzero().flatten()[: -len(touched) % _BLOCK]
        columns = torch.cat([touched, padding, self._tail])
        self.columns = columns if 2 * len(columns) <= self._p else None
        if self.columns is None:
            columns = torch.arange(self._p)
        self._width = len(columns)
        # The column of each coordinate, -1 for those that are not kept.
        self._place = torch.full((self._p,), -1)
        self._place[columns] = torch.arange(self._width)

    def touch(self, coordinates: Tensor | None) -> None:
        """Keep these coordinates (k,) from now on as well, None for all; rows get new columns where
        some of them are new.
        """
        old_columns = self.columns
        if old_columns is None:
            return
        if coordinates is None:
            coordinates = torch.arange(self._p)
        place = self._place[coordinates]
        in_tail = place >= self._width - len(self._tail)
        # Columns are the touched coordinates, padding, and the tail; padding may be dropped later.
        is_kept = in_tail | ((place >= 0) & (place < len(self._touched)))
        new = torch.from_numpy(np.unique(coordinates[~is_kept].numpy()))
        if len(new):
            self._keep(torch.cat([self._touched, new]))
            is_kept_on = self._place[old_columns] >= 0  # padding, which is zero, may be dropped
            place = self._place[old_columns[is_kept_on]]
            for name, values in self.rows.items():
                self.rows[name] = spread_out(values[:, is_kept_on], place, self._width)

    def narrow(self, message: Message, sent: Sent) -> tuple[Message, Sent]:
        """Return a message and sent atoms at the columns that are kept, (w,) instead of (p,), after
        keeping the coordinates that the atoms name.
        """
        self.touch(touched_by(sent))
        if self.columns is None:
            return message, sent
        dtype = self.rows["x"].dtype
        narrow = {
            name: narrow_atoms(atoms, self._place, self._width, dtype)
            for name, atoms in sent.items()
            if name != REPORT
        }
        return narrow_message(message, self.columns), narrow

    def view(self, rows: Tensor) -> State:
        return super().gather(rows)

    def put(self, rows: Tensor, state: State) -> None:
        super().scatter(rows, state)

    def gather(self, rows: Tensor) -> State:
        return {
            name: spread_out(values, self.columns, self._p)
            for name, values in self.view(rows).items()
        }

    def scatter(self, rows: Tensor, state: State) -> None:
        self.touch(_nonzero_columns(state))
        self.put(rows, {name: on_columns(values, self.columns) for name, values in state.items()})

    def spread(self, xbar: Tensor) -> float:
        # Outside of the columns xbar is zero, too.
        return super().spread(on_columns(xbar, self.columns))

    def insert(self, row: int, newcomer: State) -> None:
        self.touch(_nonzero_columns(newcomer))
        narrow = {name: on_columns(values, self.columns) for name, values in newcomer.items()}
        super().insert(row, narrow)

    def state(self) -> dict[str, Tensor]:
        return self.rows if self.columns is None else self.rows | {"columns": self._touched}

    def load(self, held: dict[str, Tensor]) -> None:
        held = dict(held)
        touched = held.pop("columns", None)
        super().load(held)
        self._keep(torch.arange(self._p - len(self._tail)) if touched is None else touched)


def _nonzero_columns(state: State) -> Tensor:
    """Return the coordinates at which any client holds something."""
    held = torch.stack([(values != 0).any(0) for values in state.values()])
    return held.any(0).nonzero().flatten()
