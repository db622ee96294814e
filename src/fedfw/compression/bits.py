"""`bits:8`, `bits:4`, `bits:2`: every number in few bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from fedfw.atoms import Atom, Quantised
from fedfw.compression.base import Compressor, Readers
from fedfw.sets.base import Shape


@dataclass(frozen=True)
class Bits(Compressor):
    """Each number as the nearest multiple of a step, in so many bits, with a step for up to 128 numbers.

    A number changes by at most ``scale / (2 L)``, where scale is the largest magnitude of its block in bfloat16 and L
    is 127, 7 or 1 with 8, 4 or 2 bits. No number changes by more than itself and the largest of a block by at most
    1/256 of itself, so it is a contraction with alpha = (1 - 2^-16)/128, and alpha >= 1 - 33 / L^2 is better with
    8 bits. Rounding to the nearest needs no randomness; see `fedfw.atoms.Quantised`.

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
        return {Quantised: partial(Quantised.read, shape=shape, bits=self.bits, sizes=tuple(pieces))}
