"""Compressors of single numbers: the largest, or all of them in few bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from fedfw.atoms import Atom, Quantised, SparseValues
from fedfw.atoms.floats import to_bfloat16
from fedfw.compression.base import Compressor, Readers
from fedfw.linalg.selection import first_top_k
from fedfw.sets.base import Shape


@dataclass(frozen=True)
class TopK(Compressor):
    """The K numbers of the largest magnitude, in bfloat16, and where they stand; all p of them
    where K is above p.

    It is a contraction with alpha = K/p (1 - 2^-16), where the second factor is for the rounding to
    16 bits. Which numbers are kept takes log2 C(p, K) bits, or a little more
    (`fedfw.atoms.index_sets`).

    Parameters
    ----------
    k : int
        K, at least 1.

    Examples
    --------
    >>> import torch
    >>> from fedfw.compression import TopK
    >>> sent = TopK(2).encode(torch.tensor([[0.5, -3.5, 0.0, 1.25]]), (4,), (4,))
    >>> sent.dense().tolist(), sent.nbytes
    ([[0.0, -3.5, 0.0, 1.25]], 6)
    """

    k: int

    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int]) -> Atom:
        """Return the k numbers of the largest magnitude of each row of x (n, p), in bfloat16, with
        their indices.
        """
        indices = first_top_k(x.abs(), min(self.k, x.shape[1]))
        values = to_bfloat16(x.gather(1, indices))
        return SparseValues(
            shape=shape,
            batched=True,
            precision=values.dtype,
            indices=indices,
            values=values,
            scale=1.0,
        )

    def readers(self, shape: Shape, pieces: Sequence[int]) -> Readers:
        """Return the reader of k indices with their values."""
        return {
            SparseValues: partial(
                SparseValues.read, shape=shape, k=min(self.k, sum(pieces)), scale=1.0
            )
        }


@dataclass(frozen=True)
class Bits(Compressor):
    """Each number as the nearest multiple of a step, in so many bits, with a step for up to 128
    numbers.

    A number changes by at most ``scale / (2 L)``, where scale is the largest magnitude of its block
    in bfloat16 and L is 127, 7 or 1 with 8, 4 or 2 bits. No number changes by more than itself and
    the largest of a block by at most 1/256 of itself, so it is a contraction with alpha = (1 -
    2^-16)/128, and alpha >= 1 - 33 / L^2 is better with 8 bits. Rounding to the nearest needs no
    randomness; see `fedfw.atoms.Quantised`.

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
    ([[0.5, -3.5, 0.0]], 5)
    """

    keeps_all: ClassVar[bool] = True

    bits: int

    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int]) -> Atom:
        return Quantised.nearest(x, shape=shape, bits=self.bits, sizes=pieces)

    def readers(self, shape: Shape, pieces: Sequence[int]) -> Readers:
        return {
            Quantised: partial(Quantised.read, shape=shape, bits=self.bits, sizes=tuple(pieces))
        }
