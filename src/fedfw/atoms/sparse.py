"""Atoms with few non-zero entries; memory, time and bytes are proportional to the number of these
entries.
"""

from abc import abstractmethod
from dataclasses import dataclass
from math import factorial, prod
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.atoms.base import Atom, frame_of
from fedfw.atoms.bits import Bits, Reader, byte_width, read_integer, write_integer
from fedfw.atoms.floats import floats_to_bytes, read_floats
from fedfw.atoms.index_sets import (
    Indices,
    index_set_nbytes,
    read_index_set,
    read_permutation,
    write_index_set,
    write_permutation,
)

_NO_BITS: Bits = np.empty(0, np.uint8)


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseAtom(Atom):
    """Base class of the atoms that are defined by their non-zero entries, which `entries` returns.

    Parameters
    ----------
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms import SparseAtom
    >>> isinstance(fedfw.L1Ball(1.0).lmo(torch.ones(3)), SparseAtom)
    True
    """

    @abstractmethod
    def entries(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Return the entries that may be non-zero.

        Parameters
        ----------
        dtype : torch.dtype, default torch.float64
            The dtype of the values.

        Returns
        -------
        tuple of Tensor
            Flat indices and values, both of shape (n, k).

        Examples
        --------
        >>> import torch, fedfw
        >>> indices, values = fedfw.KSparse(2, 3.0).lmo(torch.tensor([1.0, -9.0, 5.0])).entries()
        >>> indices.tolist(), values.tolist()
        ([[1, 2]], [[3.0, -3.0]])
        """

    def _dense(self, dtype: torch.dtype) -> Tensor:
        indices, values = self.entries(dtype)
        return values.new_zeros(len(indices), prod(self.shape)).scatter_add_(1, indices, values)

    def _dot(self, g: Tensor) -> Tensor:
        indices, values = self.entries()
        return (g.gather(1, indices).double() * values).sum(1)

    def _add(self, x: Tensor, weight: Tensor) -> None:
        indices, values = self.entries(x.dtype)
        x.scatter_add_(1, indices, weight * values)

    def _add_sum(self, x: Tensor, weight: float) -> None:
        """Add the values of all atoms of the stack, times weight, at their indices of x."""
        # A GPU adds scattered values in no fixed order, and a run must be repeatable to the bit.
        if x.is_cuda:
            super()._add_sum(x, weight)
        else:
            indices, values = self.entries(x.dtype)
            x.index_add_(0, indices.flatten(), values.flatten(), alpha=weight)


@dataclass(frozen=True, eq=False, kw_only=True)
class Zero(SparseAtom):
    """The origin, which is sent as the frame alone.

    Parameters
    ----------
    nothing : Tensor
        An empty tensor of shape (n, 0), int64; it only holds the number of atoms and the device.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms import Zero
    >>> Zero(shape=(3,), nothing=torch.empty(1, 0, dtype=torch.int64)).dense().tolist()
    [0.0, 0.0, 0.0]
    """

    tag: ClassVar[int] = 0
    stacked: ClassVar[tuple[str, ...]] = ("nothing",)

    nothing: Tensor  # (n, 0) int64

    @classmethod
    def read(cls, reader: Reader, precision: torch.dtype, *, shape: tuple[int, ...]) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        return cls(shape=shape, precision=precision, nothing=torch.empty(1, 0, dtype=torch.int64))

    def entries(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        return self.nothing, self.nothing.to(dtype)

    def _payload(self) -> bytes:
        return b""

    def _payload_nbytes(self) -> int:
        return 0


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseSigns(SparseAtom):
    """A vector with k entries ``scale`` or ``-scale`` and zeros elsewhere; the indices and the
    signs are sent.

    With k = 1 it is a signed multiple of a unit vector. A row whose signs are all zero is the
    origin and is encoded as `Zero`.

    Parameters
    ----------
    indices : Tensor
        Indices of the non-zero entries, int64, of shape (n, k), ascending.
    signs : Tensor
        Their signs, int8, of shape (n, k).
    scale : float
        The magnitude of the entries, usually the radius of the set; it is not sent.
    signed : bool, default True
        Whether signs are sent; otherwise they are all positive.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms import SparseSigns
    >>> signs = torch.tensor([[1, -1]], dtype=torch.int8)
    >>> SparseSigns(
    ...     shape=(4,), indices=torch.tensor([[0, 2]]), signs=signs, scale=3.0
    ... ).dense().tolist()
    [3.0, 0.0, -3.0, 0.0]
    """

    tag: ClassVar[int] = 1
    stacked: ClassVar[tuple[str, ...]] = ("indices", "signs")

    indices: Tensor  # (n, k) int64, ascending
    signs: Tensor  # (n, k) int8
    scale: float
    signed: bool = True

    @classmethod
    def read(
        cls,
        reader: Reader,
        precision: torch.dtype,
        *,
        shape: tuple[int, ...],
        k: int,
        scale: float,
        signed: bool,
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        indices, bits = read_index_set(reader, prod(shape), k, k if signed else 0)
        if signed:
            signs = 2 * bits.astype(np.int8) - 1
        else:
            signs = np.ones(k, np.int8)
        return cls(
            shape=shape,
            precision=precision,
            indices=_row(indices),
            signs=_row(signs),
            scale=scale,
            signed=signed,
        )

    @property
    def kind(self) -> str:
        """Return the kind in words: "one-hot", or the number of entries as signs or ones."""
        k = self.indices.shape[1]
        if k == 1:
            return "one-hot"
        if self.signed:
            return f"{k} signs"
        return f"{k} ones"

    def entries(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        return self.indices, self.signs.to(dtype).mul_(self.scale)

    def _frame(self) -> bytes:
        if self._is_zero():
            return frame_of(self.precision, Zero.tag)
        return super()._frame()

    def _payload(self) -> bytes:
        """Return the bytes of the index set and, where entries have signs, of one bit for each, 1
        for plus; the origin, which some sets have as an atom, takes no bytes.
        """
        if self._is_zero():
            return b""
        bits = _NO_BITS
        if self.signed:
            bits = (self.signs[0] > 0).cpu().numpy().astype(np.uint8)
        return write_index_set(_array(self.indices), prod(self.shape), bits)

    def _payload_nbytes(self) -> int:
        """Return the payload's bytes of the whole stack, without writing it."""
        indices = self.indices
        if not self.signed:  # only atoms without signs can be the origin
            indices = indices[self.signs[:, 0] != 0]
        signs = indices.shape[1] if self.signed else 0
        return index_set_nbytes(indices, prod(self.shape), signs)

    def _is_zero(self) -> bool:
        """Return whether this is the origin."""
        return not self.signed and not self.signs.any()


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseValues(SparseAtom):
    """A vector with k values at k indices and zeros elsewhere, times a number; the indices and the
    values are sent.

    Parameters
    ----------
    indices : Tensor
        Indices of the entries, int64, of shape (n, k), ascending.
    values : Tensor
        Their values over ``scale``, of shape (n, k), in the precision of the atom.
    scale : float
        The factor, usually the radius of the set, which is not sent.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms import SparseValues
    >>> values = torch.tensor([[0.5, -0.25]])
    >>> SparseValues(
    ...     shape=(4,), indices=torch.tensor([[0, 2]]), values=values, scale=4.0
    ... ).dense().tolist()
    [2.0, 0.0, -1.0, 0.0]
    """

    tag: ClassVar[int] = 2
    stacked: ClassVar[tuple[str, ...]] = ("indices", "values")

    indices: Tensor  # (n, k) int64, ascending
    values: Tensor  # (n, k) in the atom's precision
    scale: float

    @classmethod
    def read(
        cls, reader: Reader, precision: torch.dtype, *, shape: tuple[int, ...], k: int, scale: float
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        indices, _ = read_index_set(reader, prod(shape), k, 0)
        values = read_floats(reader, (1, k), precision)
        return cls(
            shape=shape, precision=precision, indices=_row(indices), values=values, scale=scale
        )

    @property
    def kind(self) -> str:
        return f"{self.indices.shape[1]} values"

    def entries(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        return self.indices, self.values.to(dtype) * self.scale

    def _payload(self) -> bytes:
        return write_index_set(_array(self.indices), prod(self.shape), _NO_BITS) + floats_to_bytes(
            self.values
        )

    def _payload_nbytes(self) -> int:
        places = index_set_nbytes(self.indices, prod(self.shape), 0)
        return places + self.values.nbytes


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupVector(SparseAtom):
    """A vector that is zero outside one group of coordinates, times a number; the group and its
    values are sent.

    Parameters
    ----------
    group : Tensor
        Number of the group, int64, of shape (n,).
    values : Tensor
        The values in the group over ``scale``, of shape (n, size of the largest group), in the
        precision of the atom, with zeros beyond the size of the group.
    order : Tensor
        The coordinates ordered by group, int64, of shape (p,).
    starts : Tensor
        Where each group starts in that order, int64, of shape (groups + 1,).
    scale : float
        The factor, usually the radius of the set, which is not sent.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch, fedfw
    >>> atom = fedfw.GroupBall(5.0, torch.tensor([0, 1, 1])).lmo(torch.tensor([1.0, 3.0, 4.0]))
    >>> atom.group.tolist(), atom.dense().round(decimals=4).tolist()
    ([1], [0.0, -3.0, -4.0])
    """

    tag: ClassVar[int] = 3
    kind: ClassVar[str] = "group"
    stacked: ClassVar[tuple[str, ...]] = ("group", "values")

    group: Tensor  # (n,) int64
    values: Tensor  # (n, largest group) in the atom's precision, zero beyond the group's size
    order: Tensor  # (p,) int64: the coordinates, group by group
    starts: Tensor  # (groups + 1,) int64: where each group starts in that order
    scale: float

    @classmethod
    def read(
        cls,
        reader: Reader,
        precision: torch.dtype,
        *,
        shape: tuple[int, ...],
        order: Tensor,
        starts: Tensor,
        scale: float,
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        sizes = starts.diff()
        group = read_integer(reader, len(sizes))
        size = int(sizes[group])
        # Rows of a stack have the length of the largest group; further places are zero.
        values = torch.zeros(1, int(sizes.max()), dtype=precision)
        values[:, :size] = read_floats(reader, (1, size), precision)
        return cls(
            shape=shape,
            precision=precision,
            group=torch.tensor([group]),
            values=values,
            order=order,
            starts=starts,
            scale=scale,
        )

    def inside(self) -> Tensor:
        """Return which of the values belong to the group, since groups differ in size.

        Returns
        -------
        Tensor
            Bool, of shape (n, size of the largest group).
        """
        sizes = self.starts.diff()
        return torch.arange(int(sizes.max()), device=sizes.device) < sizes[self.group][:, None]

    def places(self) -> Tensor:
        """Return the coordinates of the values; beyond the size of the group, where the values are
        zero, they have no meaning.

        Returns
        -------
        Tensor
            int64, of shape (n, size of the largest group).
        """
        inside = self.inside()
        offsets = self.starts[self.group][:, None] + torch.arange(
            inside.shape[1], device=inside.device
        )
        return self.order[torch.where(inside, offsets, 0)]

    def entries(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        return self.places(), self.values.to(dtype) * self.scale

    def _payload(self) -> bytes:
        return write_integer(int(self.group[0]), len(self.starts) - 1) + floats_to_bytes(
            self.values[self.inside()]
        )

    def _payload_nbytes(self) -> int:
        values = int(self.starts.diff()[self.group].sum()) * self.values.element_size()
        return len(self) * byte_width(len(self.starts) - 1) + values


@dataclass(frozen=True, eq=False, kw_only=True)
class Permutation(SparseAtom):
    """A permutation matrix: row i has its one in column ``columns[i]``.

    Parameters
    ----------
    columns : Tensor
        The columns, int64, of shape (n, m).
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms import Permutation
    >>> Permutation(shape=(2, 2), columns=torch.tensor([[1, 0]])).dense().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    tag: ClassVar[int] = 4
    kind: ClassVar[str] = "permutation"
    stacked: ClassVar[tuple[str, ...]] = ("columns",)

    columns: Tensor  # (n, m) int64

    @classmethod
    def read(cls, reader: Reader, precision: torch.dtype, *, shape: tuple[int, ...]) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        return cls(
            shape=shape, precision=precision, columns=_row(read_permutation(reader, shape[0]))
        )

    def entries(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        size = self.columns.shape[1]
        indices = torch.arange(size, device=self.columns.device) * size + self.columns
        return indices, torch.ones_like(indices, dtype=dtype)

    def _payload(self) -> bytes:
        return write_permutation(_array(self.columns))

    def _payload_nbytes(self) -> int:
        return len(self) * byte_width(factorial(self.columns.shape[1]))


def _array(row: Tensor) -> Indices:
    """Return the one row of a (1, k) index tensor, as an array."""
    return row[0].cpu().numpy()


def _row(array: npt.NDArray[Any]) -> Tensor:
    """Return an array (k,) as a tensor (1, k)."""
    return torch.from_numpy(array)[None]
