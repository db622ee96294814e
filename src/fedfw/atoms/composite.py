"""Atoms that are made of other atoms: one for each parameter of a model, or one with its
coordinates reordered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.atoms.base import Atom, ReadAtom, read_framed
from fedfw.atoms.bits import Reader


def split_columns(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return views of consecutive columns.

    Parameters
    ----------
    x : Tensor
        Shape (n, sum of sizes).
    sizes : sequence of int
        How many columns each view has.

    Returns
    -------
    list of Tensor
        Views of shape (n, size), one for each size.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms.composite import split_columns
    >>> [piece.tolist() for piece in split_columns(torch.tensor([[1, 2, 3]]), [1, 2])]
    [[[1]], [[2, 3]]]
    """
    ends = list(accumulate(sizes))
    return [x[:, end - size : end] for end, size in zip(ends, sizes, strict=True)]


@dataclass(frozen=True, eq=False, kw_only=True)
class Compound(Atom):
    """Base class of the atoms whose parts are sent in order, each with its own frame.

    Parameters
    ----------
    parts : tuple of Atom
        The atoms, all single ones or all stacks of n.
    shape, batched, precision, bound
        As for `Atom`.
    """

    stacked: ClassVar[tuple[str, ...]] = ()

    parts: tuple[Atom, ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def kind(self) -> str:
        return f"{len(self.parts)} x {self.parts[0].kind}"

    def _row(self, i: int) -> dict[str, Any]:
        return super()._row(i) | {"parts": tuple(part[i] for part in self.parts)}

    def _payload(self) -> bytes:
        return super()._payload() + b"".join(part.to_bytes() for part in self.parts)

    def _payload_nbytes(self) -> int:
        return super()._payload_nbytes() + sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, eq=False, kw_only=True)
class TupleAtom(Compound):
    """The atoms of a product of sets, in the order of the flat vector; each is sent with its own
    frame.

    Parameters
    ----------
    parts : tuple of Atom
        One atom, or one stack of n atoms, for each parameter of the model.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch, fedfw
    >>> product = fedfw.Product({"w": fedfw.L1Ball(1.0), "b": fedfw.Simplex(1.0)}).bind(
    ...     {"w": (2,), "b": (2,)}
    ... )
    >>> atom = product.lmo(torch.tensor([1.0, 3.0, 2.0, 0.0]))
    >>> atom.kind, atom.dense().tolist()
    ('one-hot + one-hot', [0.0, -1.0, 0.0, 1.0])
    """

    tag: ClassVar[int] = 9

    @classmethod
    def read(
        cls,
        reader: Reader,
        precision: torch.dtype,
        *,
        shape: tuple[int, ...],
        parts: Sequence[Mapping[type[Atom], ReadAtom]],
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        atoms = tuple(read_framed(reader, readers) for readers in parts)
        return cls(shape=shape, precision=precision, parts=atoms)

    @property
    def kind(self) -> str:
        return " + ".join(part.kind for part in self.parts)

    def _slices(self, x: Tensor) -> Sequence[Tensor]:
        """Return the columns of x (n, p) that belong to each part, as views."""
        return split_columns(x, [prod(part.shape) for part in self.parts])

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return torch.cat([part._dense(dtype) for part in self.parts], dim=1)

    def _dot(self, g: Tensor) -> Tensor:
        """Return the inner products (n,) with g (n, p): the sum over the parts of theirs with its
        slices.
        """
        products = [
            part._dot(piece.contiguous())
            for part, piece in zip(self.parts, self._slices(g), strict=True)
        ]
        return torch.stack(products).sum(0)

    def _add(self, x: Tensor, weight: Tensor) -> None:
        """Add each part, times weight, to its slice of x (n, p), in place."""
        for part, piece in zip(self.parts, self._slices(x), strict=True):
            if piece.is_contiguous():
                part._add(piece, weight)
            else:  # low-rank products need contiguous rows, which a slice of a stack does not have
                copy = piece.contiguous()
                part._add(copy, weight)
                piece.copy_(copy)

    def _add_sum(self, x: Tensor, weight: float) -> None:
        for part, piece in zip(self.parts, self._slices(x[None]), strict=True):
            part._add_sum(piece[0], weight)


@dataclass(frozen=True, eq=False, kw_only=True)
class SentAs(Atom):
    """Base class of the atoms that are sent as another one.

    Parameters
    ----------
    inner : Atom
        What is sent, one atom or a stack of n.
    shape, batched, precision, bound
        As for `Atom`.
    """

    stacked: ClassVar[tuple[str, ...]] = ()

    inner: Atom

    @property
    def kind(self) -> str:
        return self.inner.kind

    def __len__(self) -> int:
        return len(self.inner)

    def _row(self, i: int) -> dict[str, Any]:
        return super()._row(i) | {"inner": self.inner[i]}

    def _frame(self) -> bytes:
        return self.inner._frame()

    def _payload(self) -> bytes:
        return self.inner._payload()

    def _payload_nbytes(self) -> int:
        return self.inner._payload_nbytes()


@dataclass(frozen=True, eq=False, kw_only=True)
class Rearranged(SentAs):
    """An atom with its coordinates in another order; it is sent as the inner atom, because both
    sides know the order.

    Parameters
    ----------
    inner : Atom
        The atom, or stack of n atoms, in its own order.
    order : Tensor
        Integers of shape (p,): coordinate j of this atom is coordinate ``order[j]`` of the inner
        one.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.atoms import Rearranged
    >>> inner = fedfw.L1Ball(1.0).lmo(torch.tensor([-5.0, 1.0, 2.0]))
    >>> Rearranged.wrap(inner, torch.tensor([2, 0, 1]), (3,)).dense().tolist()
    [0.0, 1.0, 0.0]
    """

    order: Tensor  # (p,) int64

    @classmethod
    def wrap(cls, inner: Atom, order: Tensor, shape: tuple[int, ...]) -> Self:
        """Return an atom with its coordinates in another order, with precision and bound of the
        inner atom.

        Parameters
        ----------
        inner : Atom
            The atom, or stack of atoms, in its own order.
        order : Tensor
            Integers of shape (p,): coordinate j of the result is coordinate ``order[j]`` of the
            inner atom.
        shape : tuple of int
            The shape of the result, with p entries.

        Returns
        -------
        Rearranged
            The atom in the new order.
        """
        return cls(
            shape=shape,
            batched=inner.batched,
            precision=inner.precision,
            bound=inner.bound,
            inner=inner,
            order=order,
        )

    def _dense(self, dtype: torch.dtype) -> Tensor:
        dense = self.inner._dense(dtype)
        return dense[:, self.order.to(dense.device)]

    def _dot(self, g: Tensor) -> Tensor:
        return self.inner._dot(torch.empty_like(g).index_copy_(1, self.order.to(g.device), g))

    def _add(self, x: Tensor, weight: Tensor) -> None:
        x.addcmul_(self._dense(x.dtype), weight)
