"""Compressors of single numbers: the largest, some that are drawn, or all of them in few bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.atoms import Atom, DrawnValues, Quantised, ScaledSigns, SparseValues
from fedfw.atoms.floats import to_bfloat16
from fedfw.compression.base import Compressor, Readers
from fedfw.linalg.selection import first_top_k
from fedfw.randomness import generator
from fedfw.sets.base import Shape


@dataclass(frozen=True)
class TopK(Compressor):
    """The K numbers of the largest magnitude, in bfloat16, and where they stand; all p of them
    where K is above p.

    It is a contraction with alpha = K/p (1 - 2^-16), where the second factor is for the rounding to
    16 bits. Which numbers are kept takes log2 C(p, K) bits, or a little more (`fedfw.atoms.bits`).

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

    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Atom:
        """Keep the k largest numbers of each row, in bfloat16."""
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

    def readers(self, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Readers:
        """Return the reader of k indices with their values."""
        return {
            SparseValues: partial(
                SparseValues.read, shape=shape, k=min(self.k, sum(pieces)), scale=1.0
            )
        }


@dataclass(frozen=True)
class RandK(Compressor):
    """K numbers in bfloat16, at places that follow from the draw; all p of them where K is above p.

    Both sides know the draw, the round, so nothing says where the numbers stand, and all clients of
    a round send the same places. They are not scaled by p/K: the mean of C(v) is then not v, but v
    loses nothing that error feedback does not bring. No draw makes ||C(v) - v|| longer than ||v||,
    and over the draws it is a contraction in the mean, with alpha = K/p (1 - 2^-16).

    Parameters
    ----------
    k : int
        K, at least 1.

    Examples
    --------
    >>> import torch
    >>> from fedfw.compression import RandK
    >>> sent = RandK(2).encode(torch.ones(1, 4), (4,), (4,), draw=1)
    >>> int(sent.dense().sum()), sent.nbytes
    (2, 5)
    """

    k: int

    def _places(self, p: int, draw: int, device: torch.device) -> Tensor:
        """The indices (K,) of a draw, ascending."""
        # int() refuses what stands for the round while a GPU's steps are recorded: they would
        # repeat one draw.
        order = torch.randperm(p, generator=generator(0, "randk", int(draw)))
        return order[: min(self.k, p)].sort().values.to(device)

    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Atom:
        """Keep k numbers at places that both ends draw from the seed: no indices travel."""
        places = self._places(x.shape[1], draw, x.device)
        values = to_bfloat16(x[:, places])
        return DrawnValues(
            shape=shape, batched=True, precision=values.dtype, indices=places, values=values
        )

    def readers(self, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Readers:
        places = self._places(sum(pieces), draw, torch.device("cpu"))
        return {DrawnValues: partial(DrawnValues.read, shape=shape, indices=places)}


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

    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Atom:
        return Quantised.nearest(x, shape=shape, bits=self.bits, sizes=pieces)

    def readers(self, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Readers:
        return {
            Quantised: partial(Quantised.read, shape=shape, bits=self.bits, sizes=tuple(pieces))
        }


@dataclass(frozen=True)
class Sign(Compressor):
    """The signs of all numbers, times the mean magnitude of their piece.

    For a piece of d numbers ||C(v) - v||^2 = ||v||^2 - ||v||_1^2 / d, so it is a contraction with
    alpha = 1/d, where d is the longest piece, and with about 2/3 for numbers like Gaussian ones.
    Zeros count as positive.

    Examples
    --------
    >>> import torch
    >>> from fedfw.compression import Sign
    >>> sent = Sign().encode(torch.tensor([[0.5, -3.5, 0.0, 2.0]]), (4,), (4,))
    >>> sent.dense().tolist(), sent.nbytes
    ([[1.5, -1.5, 1.5, 1.5]], 6)
    """

    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Atom:
        return ScaledSigns.of(x, shape=shape, sizes=pieces)

    def readers(self, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Readers:
        return {ScaledSigns: partial(ScaledSigns.read, shape=shape, sizes=tuple(pieces))}
