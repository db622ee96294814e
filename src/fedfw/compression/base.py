"""The base class of compressors, and how compressed vectors are sent.

A `Compressor` turns vectors into atoms that decode to something near them, with the same bits on
both sides. Each class says how near, as a contraction

    ||C(v) - v||^2 <= (1 - alpha) ||v||^2    with some alpha in (0, 1],

which is what error feedback needs: what a message loses is part of the next one, and the errors die
out (Richtarik, Sokolov and Fatkhullin, "EF21: A new, simpler, theoretically better, and practically
faster error feedback", 2021). Two things are sent in this way:

- A vector as it is (`Compressor.encode`), such as the change of a memory that both sides hold. Both
  sides go on from the decoded change, so the next one includes what this one lost: nothing else has
  to remember the errors.
- A net atom of a set (`Compressor.encode_net`): its difference from the model. The decoded point
  may lie outside of the set, so it is shrunk into it (`ConstraintSet.shrink`), by the sender
  and by the receiver. What a hostile client sends is therefore a point of the set, too. Only
  atoms that would travel as a dense vector are compressed, and only by compressors that keep
  something of every number (`Compressor.keeps_all`): a point from which most of its move is missing
  is no use, and nothing remembers what it lost. The others travel as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedfw.atoms import Atom, Dense, Moved, ReadAtom, Rearranged, TupleAtom
from fedfw.atoms.bits import Reader
from fedfw.atoms.composite import split_columns
from fedfw.errors import AtomError
from fedfw.options import option
from fedfw.sets.base import ConstraintSet, Shape
from fedfw.sets.product import BoundProduct

Readers = Mapping[type[Atom], ReadAtom]

_NUMBER = "[1-9][0-9]{0,8}"
_EXPECTED = (
    "none, topk:K (the K largest numbers), bits:8, bits:4, bits:2 (so many bits a number), "
    "rank:R (matrices of rank R) or atoms:R (R atoms of the set)"
)
CompressOption = Annotated[
    str,
    option(
        f"what is done to dense vectors that clients send: {_EXPECTED}",
        expected=_EXPECTED,
        pattern=f"^(none|bits:[248]|(topk|rank|atoms):{_NUMBER})$",
    ),
]
"""The option ``compress`` of every algorithm that has one."""

CompressDownOption = Annotated[
    str,
    option(
        "what is done to the vector that the server sends: none, or topk:K (its K largest changes)",
        expected="none, or topk:K (the K largest changes)",
        pattern=f"^(none|topk:{_NUMBER})$",
    ),
]
"""The option ``compress_down`` of every algorithm that has one."""


def compress_option(method: object) -> str:
    """Return a method's option ``compress``, or "none" where it has no such option."""
    return str(getattr(method, "compress", "none"))


def compress_down_option(method: object) -> str:
    """Return a method's option ``compress_down``, or "none" where it has no such option."""
    return str(getattr(method, "compress_down", "none"))


class Compressor(ABC):
    """Turns vectors into shorter atoms; a new one defines `encode` and `readers`."""

    keeps_all: ClassVar[bool] = False
    """A part of every number is kept, so that net atoms may be sent with it."""

    def bind(self, constraint: ConstraintSet, shapes: Sequence[Shape]) -> Compressor:
        """The compressor for vectors of a run, whose set and whose parameters' shapes some
        compressors go by.

        Parameters
        ----------
        constraint : ConstraintSet
            The set on the flat vector of parameters.
        shapes : sequence of tuple of int
            The shapes of the parameters, one after the other in that vector; empty where they are
            not known.
        """
        return self

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
            The lengths of the parameters that lie one after the other in a row
            (`ConstraintSet.pieces`).
        """

    @abstractmethod
    def readers(self, shape: Shape, pieces: Sequence[int]) -> Readers:
        """The functions that decode what `encode` makes, for the same shape and pieces."""

    def encode_net(self, net: Atom, base: Tensor, constraint: ConstraintSet, shape: Shape) -> Atom:
        """Return a stack of net atoms, of which those that are dense are encoded as differences
        from base (p,).

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
            A stack of points of the set: parts of a product one by one, dense ones as `Moved`, all
            others unchanged.
        """
        if not self.keeps_all:
            return net
        if isinstance(constraint, BoundProduct):
            assert isinstance(net, TupleAtom)
            pieces = zip(
                net.parts,
                _parts(base, constraint),
                constraint.parts,
                constraint.shapes,
                strict=True,
            )
            return replace(net, bound=None, parts=tuple(self.encode_net(*part) for part in pieces))
        inner = net.inner if isinstance(net, Rearranged) else net
        if not isinstance(inner, Dense):  # sparse, signs, factors: short as they are
            return net
        difference = net.dense(base.dtype).reshape(-1, len(base)) - base
        return _moved(self.encode(difference, shape, constraint.pieces(shape)), base, constraint)

    def net_readers(
        self, base: Tensor, constraint: ConstraintSet, shape: Shape, weights: Sequence[float]
    ) -> Readers:
        """Return the functions that decode, by kind of atom, what `encode_net` makes of mixtures
        with these weights: dense atoms come as differences from base (p,).
        """
        if not self.keeps_all:
            return constraint.net_readers(shape, weights)
        if isinstance(constraint, BoundProduct):
            pieces = zip(_parts(base, constraint), constraint.parts, constraint.shapes, strict=True)
            parts = [self.net_readers(*part, weights) for part in pieces]
            return {TupleAtom: partial(TupleAtom.read, shape=shape, parts=parts)}
        readers = dict(constraint.net_readers(shape, weights))
        if readers.pop(Dense, None) is None:
            return readers
        moves = self.readers(shape, constraint.pieces(shape))
        moved = {kind: partial(_read_moved, read, base, constraint) for kind, read in moves.items()}
        return readers | moved


def _parts(base: Tensor, constraint: BoundProduct) -> list[Tensor]:
    """The pieces of base (p,) that belong to each part of a product."""
    return [
        piece[0]
        for piece in split_columns(base[None], [prod(shape) for shape in constraint.shapes])
    ]


def _moved(move: Atom, base: Tensor, constraint: ConstraintSet) -> Moved:
    """The points base + move, in the set."""
    values = base + move._dense(base.dtype)
    values = constraint.shrink(values.view(-1, *move.shape), batch=True).reshape(values.shape)
    return Moved(
        shape=move.shape, batched=move.batched, precision=base.dtype, values=values, inner=move
    )


def _read_moved(
    read: ReadAtom,
    base: Tensor,
    constraint: ConstraintSet,
    reader: Reader,
    precision: torch.dtype,
) -> Moved:
    """Decode a move by ``read``, and return the point moved to; refuse a number that overflows."""
    move = read(reader, precision)
    if not bool((base + move._dense(base.dtype)).isfinite().all()):
        raise AtomError("a number is too large")
    return _moved(move, base, constraint)
