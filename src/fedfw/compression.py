"""Compressed uploads: what a client sends in fewer bytes, with the same bits on both sides.

A `Compressor` turns vectors into atoms that decode to something near them. Three things are sent in this way:

- A vector as it is (`Compressor.encode`), such as the change of a memory that both sides hold. Both sides go on from
  the decoded change, so the next one includes what this one lost: nothing else has to remember the errors.
- A vector near one that both sides hold (`Compressor.encode_near`): the difference is sent.
- A net atom of a set (`Compressor.encode_net`): its difference from the model. The decoded point may lie outside of
  the set, so it is shrunk into it (`ConstraintSet.shrink`), by whoever sends it and by whoever receives it. What a
  hostile client sends is therefore a point of the set, too. Only atoms that would travel as a dense vector are
  compressed; the others are short already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Annotated

import torch
from torch import Tensor

from fedfw.atoms import Atom, Dense, Moved, Quantised, ReadAtom, Rearranged, TupleAtom
from fedfw.atoms.bits import Reader
from fedfw.atoms.composite import split_columns
from fedfw.errors import AtomError
from fedfw.options import option
from fedfw.sets.base import ConstraintSet, Shape
from fedfw.sets.product import BoundProduct

Readers = Mapping[type[Atom], ReadAtom]

Compress = Annotated[
    str,
    option(
        "what is done to dense vectors that clients send: none, or bits:8, bits:4, bits:2 for so many bits a number",
        expected="none, bits:8, bits:4 or bits:2",
        pattern=r"^(none|bits:[248])$",
    ),
]
"""The option ``compress`` of every algorithm that has one."""


class Compressor(ABC):
    """Turns vectors into shorter atoms; a new one defines `encode` and `readers`."""

    @abstractmethod
    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int]) -> Atom:
        """A stack of n atoms whose values are near the rows of x.

        Parameters
        ----------
        x : Tensor
            Shape (n, p), finite.
        shape : tuple of int
            Shape of one value, with p entries.
        pieces : sequence of int
            The lengths of the parameters that lie one after the other in a row (`ConstraintSet.pieces`).
        """

    @abstractmethod
    def readers(self, shape: Shape, pieces: Sequence[int]) -> Readers:
        """The functions that decode what `encode` makes, for the same shape and pieces."""

    def encode_near(self, x: Tensor, base: Tensor, pieces: Sequence[int]) -> Moved:
        """Vectors x (n, p), sent as their differences from one that both sides hold, base (p,)."""
        shape = (x.shape[1],)
        return _moved(self.encode(x - base, shape, pieces), base)

    def near_readers(self, base: Tensor, pieces: Sequence[int]) -> Readers:
        """The functions that decode what `encode_near` makes."""
        return _moved_readers(self.readers(tuple(base.shape), pieces), base)

    def encode_net(self, net: Atom, base: Tensor, constraint: ConstraintSet, shape: Shape) -> Atom:
        """A stack of net atoms of a set, of which those that are dense are sent as differences from base (p,).

        Parameters
        ----------
        net : Atom
            A stack of what `fedfw.atoms.mix` made of atoms of the set.
        base : Tensor
            The model that both sides hold, (p,).
        constraint : ConstraintSet
            The set.
        shape : tuple of int
            Shape of the parameter.

        Returns
        -------
        Atom
            A stack of points of the set: parts of a product one by one, dense ones as `Moved`, all others unchanged.
        """
        if isinstance(constraint, BoundProduct):
            assert isinstance(net, TupleAtom)
            each = zip(net.parts, _parts(base, constraint), constraint.parts, constraint.shapes, strict=True)
            return replace(net, bound=None, parts=tuple(self.encode_net(*part) for part in each))
        if not isinstance(net.inner if isinstance(net, Rearranged) else net, Dense):
            return net
        difference = net.dense(base.dtype).reshape(-1, len(base)) - base
        return _moved(self.encode(difference, shape, constraint.pieces(shape)), base, constraint)

    def net_readers(self, base: Tensor, constraint: ConstraintSet, shape: Shape, weights: Sequence[float]) -> Readers:
        """The functions that decode what `encode_net` makes of mixtures with these weights."""
        if isinstance(constraint, BoundProduct):
            each = zip(_parts(base, constraint), constraint.parts, constraint.shapes, strict=True)
            parts = [self.net_readers(*part, weights) for part in each]
            return {TupleAtom: partial(TupleAtom.read, shape=shape, parts=parts)}
        readers = dict(constraint.net_readers(shape, weights))
        if readers.pop(Dense, None) is None:
            return readers
        return {**readers, **_moved_readers(self.readers(shape, constraint.pieces(shape)), base, constraint)}


@dataclass(frozen=True)
class Bits(Compressor):
    """Each number as the nearest multiple of a step, in so many bits, with a step for up to 256 numbers.

    A number changes by at most ``scale / (2 L)``, where scale is the largest magnitude of its block and L is 127, 7 or
    1 with 8, 4 or 2 bits. Rounding to the nearest needs no randomness; see `fedfw.atoms.Quantised`.

    Parameters
    ----------
    bits : int
        8, 4 or 2.

    Examples
    --------
    >>> import torch
    >>> from fedfw.compression import Bits
    >>> sent = Bits(4).encode(torch.tensor([[0.5, -3.5, 0.0]]), (3,), (3,))
    >>> sent.dense().tolist(), sent.nbytes
    ([[0.5, -3.5, 0.0]], 7)
    """

    bits: int

    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int]) -> Atom:
        return Quantised.nearest(x, shape=shape, bits=self.bits, sizes=pieces)

    def readers(self, shape: Shape, pieces: Sequence[int]) -> Readers:
        return {Quantised: partial(Quantised.read, shape=shape, bits=self.bits, sizes=tuple(pieces))}


def make_compressor(text: str) -> Compressor | None:
    """The compressor that the option ``compress`` names; None for "none".

    Examples
    --------
    >>> from fedfw.compression import make_compressor
    >>> make_compressor("bits:4"), make_compressor("none")
    (Bits(bits=4), None)
    """
    name, _, number = text.partition(":")
    return Bits(int(number)) if name == "bits" else None


def _parts(base: Tensor, constraint: BoundProduct) -> list[Tensor]:
    """The pieces of base (p,) that belong to each part of a product."""
    return [piece[0] for piece in split_columns(base[None], [prod(shape) for shape in constraint.shapes])]


def _moved(move: Atom, base: Tensor, constraint: ConstraintSet | None = None) -> Moved:
    """The points base + move, in the set if there is one."""
    values = base + move._dense(base.dtype)
    if constraint is not None:
        values = constraint.shrink(values.view(-1, *move.shape), batch=True).reshape(values.shape)
    return Moved(shape=move.shape, batched=move.batched, precision=base.dtype, values=values, move=move)


def _moved_readers(readers: Readers, base: Tensor, constraint: ConstraintSet | None = None) -> Readers:
    def moved(read: ReadAtom) -> ReadAtom:
        def read_moved(reader: Reader, precision: torch.dtype) -> Moved:
            move = read(reader, precision)
            if not bool((base + move._dense(base.dtype)).isfinite().all()):
                raise AtomError("a number is too large")
            return _moved(move, base, constraint)

        return read_moved

    return {kind: moved(read) for kind, read in readers.items()}
