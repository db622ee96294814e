"""`sign`: one bit a number."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from fedfw.atoms import Atom, ScaledSigns
from fedfw.compression.base import Compressor, Readers
from fedfw.sets.base import Shape


@dataclass(frozen=True)
class Sign(Compressor):
    """The signs of all numbers, times the mean magnitude of their piece.

    For a piece of d numbers ||C(v) - v||^2 = ||v||^2 - ||v||_1^2 / d, so it is a contraction with alpha = 1/d, where d
    is the longest piece, and with about 2/3 for numbers like Gaussian ones. Zeros count as positive.

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
