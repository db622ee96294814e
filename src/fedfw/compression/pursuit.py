"""`atoms:R`: a few atoms of the set itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from fedfw.atoms import Atom, Combination, TupleAtom
from fedfw.atoms.base import stack_atoms
from fedfw.atoms.composite import split_columns
from fedfw.atoms.floats import to_bfloat16
from fedfw.compression.base import Compressor, Readers
from fedfw.sets.base import ConstraintSet, Shape
from fedfw.sets.product import BoundProduct

_TOL = 1e-3
"""Accuracy of oracles that iterate: the next atom makes up for the rest."""


@dataclass(frozen=True)
class Pursuit(Compressor):
    """R atoms of the set with a coefficient each, by matching pursuit; with a product of sets R of
    each part.

    The next atom is the one that, times the best coefficient, leaves the least of what is left: the
    oracle's answer to it or to its opposite. For an l1 ball it is the largest number, for a nuclear
    ball the leading singular pair, for a group ball the longest group. Numbers of atoms travel in
    float16 and coefficients in bfloat16. ||C(v) - v|| never exceeds ||v||, and it is a contraction
    where atoms, with both signs, span the space: for an l1 ball with alpha = 1 - (1 - c/d)^R, where
    d = p and c = 1 - 2^-7 is for rounding; for a nuclear ball d is the shorter side, for a group
    ball the number of groups.

    Parameters
    ----------
    r : int
        R, at least 1.
    constraint : ConstraintSet or None
        The set on the flat vector (`bind`).

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.compression import Pursuit
    >>> sent = Pursuit(2, fedfw.L1Ball(10.0)).encode(
    ...     torch.tensor([[0.5, -3.5, 0.0, 1.25]]), (4,), (4,)
    ... )
    >>> [round(value, 2) for value in sent.dense()[0].tolist()], sent.nbytes
    ([0.0, -3.5, 0.0, 1.25], 9)
    """

    r: int
    constraint: ConstraintSet | None = None

    def bind(self, constraint: ConstraintSet, shapes: Sequence[Shape]) -> Pursuit:
        return replace(self, constraint=constraint)

    def _parts(self) -> list[tuple[Pursuit, Shape]] | None:
        """Return a pursuit for each part of a product of sets, with the shape of its values; None
        for a set that is no product.
        """
        if self.constraint is None:
            raise ValueError(
                f"compress='atoms:{self.r}' has no set yet, whose atoms it could send: bind gives "
                "it one"
            )
        if not isinstance(self.constraint, BoundProduct):
            return None
        pairs = zip(self.constraint.parts, self.constraint.shapes, strict=True)
        return [(replace(self, constraint=part), shape) for part, shape in pairs]

    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int]) -> Atom:
        """Approximate each row by a few atoms of the set; of a product, part by part."""
        parts = self._parts()
        if parts is None:
            return self._pursue(x, shape)
        columns = split_columns(x, [prod(part_shape) for _, part_shape in parts])
        atoms = tuple(
            part.encode(piece.contiguous(), part_shape, ())
            for piece, (part, part_shape) in zip(columns, parts, strict=True)
        )
        return TupleAtom(shape=shape, batched=True, precision=torch.bfloat16, parts=atoms)

    def _pursue(self, x: Tensor, shape: Shape) -> Combination:
        """Return r atoms with coefficients for each row of x (n, p) by matching pursuit: each time
        the atom s with the largest <s, rest>^2 / |s|^2, where rest is what is left of the row.
        """
        assert self.constraint is not None
        rest = x.double()
        n = len(x)
        atoms = list[Atom]()
        coefficients = list[Tensor]()
        for _ in range(self.r):
            # Of every row two candidates: the atoms with the largest and the least <s, rest>.
            directions = torch.cat([-rest, rest]).to(x.dtype).view(-1, *shape)
            both = self.constraint.lmo(directions, batch=True, precision=torch.float16, tol=_TOL)
            values = both._dense(torch.float64)
            # An atom at the origin has length 0; it gains nothing, and must not give NaN.
            lengths = values.square().sum(1).clamp(min=torch.finfo(torch.float64).tiny)
            products = (values * rest.repeat(2, 1)).sum(1)
            gains = products.square() / lengths
            best = torch.where(gains[:n] >= gains[n:], 0, n) + torch.arange(n, device=x.device)
            atoms.append(stack_atoms([both[i] for i in best.tolist()]))
            coefficients.append(to_bfloat16(products / lengths)[best])
            # The coefficient as it is sent, so that later atoms make up for its rounding.
            rest = rest - coefficients[-1].double()[:, None] * values[best]
        stacked = torch.stack(coefficients, 1)
        return Combination(
            shape=shape,
            batched=True,
            precision=stacked.dtype,
            coefficients=stacked,
            parts=tuple(atoms),
        )

    def readers(self, shape: Shape, pieces: Sequence[int]) -> Readers:
        """Return the function that decodes r atoms of the set with a coefficient each, by kind of
        atom. No atom depends on ``pieces``, the blocks of other compressors.
        """
        parts = self._parts()
        if parts is None:
            assert self.constraint is not None
            atom_readers = self.constraint.readers(shape)
            read = partial(Combination.read, shape=shape, readers=atom_readers, k=self.r)
            return {Combination: read}
        readers = [part.readers(part_shape, ()) for part, part_shape in parts]
        return {TupleAtom: partial(TupleAtom.read, shape=shape, parts=readers)}
