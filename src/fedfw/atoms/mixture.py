"""Combinations of atoms.

The net atom of several local steps is convex, and its weights follow from the schedule and are not
sent (`Mixture`). Any other combination is sent with its coefficients (`Combination`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedfw.atoms.base import Atom, ReadAtom, read_framed
from fedfw.atoms.bits import Reader
from fedfw.atoms.composite import Compound, TupleAtom
from fedfw.atoms.dense import Dense, DenseAtom
from fedfw.atoms.floats import read_floats
from fedfw.atoms.sparse import SparseAtom


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixture(Compound):
    """A convex combination ``sum_k weights[k] * parts[k]`` of atoms; only the parts are sent, in
    order.

    Parameters
    ----------
    parts : tuple of Atom
        The atoms, all single ones or all stacks of n.
    weights : tuple of float
        One positive weight for each part; they sum to 1.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms import Mixture
    >>> ball = fedfw.L1Ball(4.0)
    >>> parts = (ball.lmo(torch.tensor([-1.0, 0.0])), ball.lmo(torch.tensor([0.0, 1.0])))
    >>> Mixture(shape=(2,), parts=parts, weights=(0.25, 0.75)).dense().tolist()
    [1.0, -3.0]
    """

    tag: ClassVar[int] = 10

    weights: tuple[float, ...]

    @classmethod
    def read(
        cls,
        reader: Reader,
        precision: torch.dtype,
        *,
        shape: tuple[int, ...],
        readers: Mapping[type[Atom], ReadAtom],
        weights: tuple[float, ...],
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        parts = tuple(read_framed(reader, readers) for _ in weights)
        return cls(shape=shape, precision=precision, parts=parts, weights=weights)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return _combine([part._dense(dtype) for part in self.parts], self.weights)

    def _dot(self, g: Tensor) -> Tensor:
        return _combine([part._dot(g) for part in self.parts], self.weights)

    def _add(self, x: Tensor, weight: Tensor) -> None:
        for part, share in zip(self.parts, self.weights, strict=True):
            part._add(x, weight * share)

    def _add_sum(self, x: Tensor, weight: float) -> None:
        for part, share in zip(self.parts, self.weights, strict=True):
            part._add_sum(x, weight * share)


def _combine(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted sum of tensors."""
    total = values[0] * weights[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total.add_(value, alpha=weight)
    return total


@dataclass(frozen=True, eq=False, kw_only=True)
class Combination(Compound, DenseAtom):
    """A vector ``sum_k coefficients[k] * parts[k]``; the coefficients are sent, and then the parts,
    in order.

    Parameters
    ----------
    coefficients : Tensor
        Of shape (n, k), in the precision of the atom.
    parts : tuple of Atom
        k atoms, all single ones or all stacks of n.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms import Combination
    >>> ball = fedfw.L1Ball(1.0)
    >>> parts = (ball.lmo(torch.tensor([-1.0, 0.0])), ball.lmo(torch.tensor([0.0, 1.0])))
    >>> Combination(
    ...     shape=(2,), coefficients=torch.tensor([[2.0, 5.0]]), parts=parts
    ... ).dense().tolist()
    [2.0, -5.0]
    """

    tag: ClassVar[int] = 14
    stacked: ClassVar[tuple[str, ...]] = ("coefficients",)

    coefficients: Tensor  # (n, k) in the atom's precision

    @classmethod
    def read(
        cls,
        reader: Reader,
        precision: torch.dtype,
        *,
        shape: tuple[int, ...],
        readers: Mapping[type[Atom], ReadAtom],
        k: int,
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        coefficients = read_floats(reader, (1, k), precision)
        parts = tuple(read_framed(reader, readers) for _ in range(k))
        return cls(shape=shape, precision=precision, coefficients=coefficients, parts=parts)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        total = self.coefficients[:, :1].to(dtype) * self.parts[0]._dense(dtype)
        for k, part in enumerate(self.parts[1:], 1):
            total = total + self.coefficients[:, k : k + 1].to(dtype) * part._dense(dtype)
        return total


def is_sparse(atom: Atom) -> bool:
    """Return whether an atom, or a stack of atoms, names few coordinates and their values.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms import is_sparse
    >>> g = torch.tensor([1.0, -3.0])
    >>> is_sparse(fedfw.L1Ball(1.0).lmo(g)), is_sparse(fedfw.L2Ball(1.0).lmo(g))
    (True, False)
    """
    if isinstance(atom, SparseAtom):
        return True
    return isinstance(atom, Mixture | TupleAtom) and all(is_sparse(part) for part in atom.parts)


def mix(atoms: Sequence[Atom], weights: Sequence[float]) -> Atom:
    """Return the convex combination of atoms, in the shorter of two forms: all of its parts, or one
    dense vector.

    Parameters
    ----------
    atoms : sequence of Atom
        At least one atom or stack of atoms of the same set and shape. A single one is returned
        unchanged.
    weights : sequence of float
        One positive weight for each atom; they sum to 1.

    Returns
    -------
    Atom
        A `Mixture` or a `Dense` atom; for a product of sets a `TupleAtom` of such atoms.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms import mix
    >>> ball = fedfw.L1Ball(4.0)
    >>> atoms = [ball.lmo(torch.eye(1000)[0]), ball.lmo(torch.eye(1000)[1])]
    >>> mix(atoms, (0.25, 0.75)).kind
    '2 x one-hot'
    """
    first = atoms[0]
    if len(atoms) == 1:
        return first
    if isinstance(first, TupleAtom):
        columns = zip(*(atom.parts for atom in atoms if isinstance(atom, TupleAtom)), strict=True)
        return replace(first, bound=None, parts=tuple(mix(column, weights) for column in columns))
    mixture = Mixture(
        shape=first.shape,
        batched=first.batched,
        precision=first.precision,
        parts=tuple(atoms),
        weights=tuple(weights),
    )
    entries = len(first) * torch.Size(first.shape).numel()
    dense_nbytes = len(first) + entries * first.precision.itemsize  # a frame of one byte each
    if not isinstance(first, DenseAtom) and mixture.nbytes < dense_nbytes:
        return mixture
    values = mixture._dense(torch.float64).to(first.precision)
    return Dense(shape=first.shape, batched=first.batched, precision=first.precision, values=values)


def mixture_readers(
    readers: Mapping[type[Atom], ReadAtom], shape: tuple[int, ...], weights: Sequence[float]
) -> dict[type[Atom], ReadAtom]:
    """Return the functions that decode what `mix` makes of a set's atoms.

    Parameters
    ----------
    readers : mapping from a subclass of Atom to ReadAtom
        The kinds of atom of the set, each with the function that decodes it.
    shape : tuple of int
        Shape of the parameter.
    weights : sequence of float
        The weights of the mixture.

    Returns
    -------
    dict from a subclass of Atom to ReadAtom
        A function for `Mixture` and one for `Dense`.

    Examples
    --------
    >>> import fedfw
    >>> from fedfw.atoms.mixture import mixture_readers
    >>> readers = mixture_readers(fedfw.L1Ball(1.0).readers((1000,)), (1000,), (0.25, 0.75))
    >>> [kind.__name__ for kind in readers]
    ['Mixture', 'Dense']
    """
    return {
        Mixture: partial(Mixture.read, shape=shape, readers=readers, weights=tuple(weights)),
        Dense: partial(Dense.read, shape=shape, scale=1.0),
    }
