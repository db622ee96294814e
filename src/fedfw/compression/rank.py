"""`rank:R`: matrices of low rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from fedfw.atoms import Atom, Dense, LowRank, TupleAtom
from fedfw.atoms.composite import split_columns
from fedfw.atoms.floats import to_bfloat16
from fedfw.compression.base import Compressor, Readers
from fedfw.linalg.singular import top_singular
from fedfw.sets.base import ConstraintSet, Shape

_TOL = 1e-3
"""How accurate the singular vectors of large matrices are: error feedback makes up for the rest."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Factors(LowRank):
    """A matrix u v' that is added up column by column: a stack and one of its rows then have the
    same bits.
    """

    def _dense(self, dtype: torch.dtype) -> Tensor:
        """Return (n, p): the products of the factors, added up in a fixed order for the same bits
        everywhere.
        """
        u = self.u.to(dtype)
        v = self.v.to(dtype)
        total = u[:, :, 0, None] * v[:, None, :, 0]
        for k in range(1, u.shape[2]):
            total = total + u[:, :, k, None] * v[:, None, :, k]
        return total.flatten(1)


@dataclass(frozen=True)
class Rank(Compressor):
    """Parameters that are matrices as matrices of rank R, and all others whole, both with numbers
    in bfloat16.

    A parameter of more than two axes is a matrix with one row for each entry of its first axis. One
    whose factors would have as many numbers as it has itself is sent whole. The factor on the
    shorter side has the leading singular vectors, rounded; the other one is the best for them, so
    that rounding costs little: it is a contraction with alpha = R/d (1 - 2^-6), where d is the
    longest of the matrices' shorter sides.

    Parameters
    ----------
    r : int
        R, at least 1.
    shapes : tuple of tuple of int
        The shapes of the parameters, one after the other in a vector (`bind`); without them its
        pieces are vectors.

    Examples
    --------
    >>> import torch
    >>> from fedfw.compression import Rank
    >>> sent = Rank(1, ((3, 4),)).encode(torch.ones(1, 12), (12,), (12,))
    >>> sent.kind, bool((sent.dense() - 1).abs().max() < 0.01), sent.nbytes
    ('rank 1', True, 16)
    """

    r: int
    shapes: tuple[Shape, ...] = ()

    def bind(self, constraint: ConstraintSet, shapes: Sequence[Shape]) -> Rank:
        """Return the compressor for parameters of these shapes; refuse a model none of whose
        matrices would be shorter as factors.
        """
        if not any(self._matrix(shape) for shape in shapes):
            raise ValueError(
                f"compress='rank:{self.r}', expected another one: no parameter is a matrix that "
                "factors of rank "
                f"{self.r} make shorter, with the shapes {list(shapes)}"
            )
        return replace(self, shapes=tuple(shapes))

    def _matrix(self, shape: Shape) -> tuple[int, int] | None:
        """The sides of the matrix that a parameter is; None for one that travels whole."""
        rows, columns = (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))
        return (rows, columns) if self.r * (rows + columns) < rows * columns else None

    def _parts(self, pieces: Sequence[int]) -> Sequence[Shape]:
        return self.shapes or [(size,) for size in pieces]

    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int]) -> Atom:
        shapes = self._parts(pieces)
        columns = split_columns(x, [prod(one) for one in shapes])
        parts = tuple(self._encode(*one) for one in zip(columns, shapes, strict=True))
        return TupleAtom(shape=shape, batched=True, precision=torch.bfloat16, parts=parts)

    def _encode(self, x: Tensor, shape: Shape) -> Atom:
        """Return the rows of x (n, p), values of one parameter, as factors if they are matrices
        that get shorter, and as they are otherwise.
        """
        sides = self._matrix(shape)
        if sides is None:
            values = to_bfloat16(x)
            return Dense(shape=shape, batched=True, precision=values.dtype, values=values)
        rows, columns = sides
        u, v = _factors(x.reshape(-1, rows, columns).double(), self.r)
        return Factors(shape=shape, batched=True, precision=u.dtype, u=u, v=v, scale=1.0)

    def readers(self, shape: Shape, pieces: Sequence[int]) -> Readers:
        parts = [self._readers(one) for one in self._parts(pieces)]
        return {TupleAtom: partial(TupleAtom.read, shape=shape, parts=parts)}

    def _readers(self, shape: Shape) -> Readers:
        """Return the function that decodes a parameter of this shape, by kind of atom: factors of
        a matrix that gets shorter, or all numbers.
        """
        sides = self._matrix(shape)
        if sides is None:
            return {Dense: partial(Dense.read, shape=shape, scale=1.0)}
        rows, columns = sides
        return {
            Factors: partial(
                Factors.read, shape=shape, rows=rows, columns=columns, k=self.r, scale=1.0
            )
        }


def _factors(m: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """Return factors u (n, rows, r) and v (n, columns, r) in bfloat16 with u v' near the matrices m
    (n, rows, columns), which are in float64.
    """
    if m.shape[1] > m.shape[2]:
        v, u = _factors(m.mT, r)
        return u, v
    rest = m
    columns = list[Tensor]()
    for _ in range(r):
        u = top_singular(rest, tol=_TOL).u[:, :, None]
        rest = rest - u @ (u.mT @ rest)  # rest: m without its parts along the vectors so far
        columns.append(u)
    left = to_bfloat16(torch.cat(columns, 2))
    exact = left.double()
    # The best right factor for the rounded left one, by least squares. Columns may repeat each
    # other where a matrix has a rank below r, hence the pseudo-inverse.
    right = m.mT @ exact @ torch.linalg.pinv(exact.mT @ exact, hermitian=True)
    return left, to_bfloat16(right)
