"""`topk:K`: the K largest numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from fedfw.atoms import Atom, SparseValues
from fedfw.atoms.floats import to_bfloat16
from fedfw.compression.base import Compressor, Readers
from fedfw.linalg.selection import first_top_k
from fedfw.sets.base import Shape


@dataclass(frozen=True)
class TopK(Compressor):
    """The K numbers of the largest magnitude, in bfloat16, and where they stand; all p of them where K is above p.

    It is a contraction with alpha = K/p (1 - 2^-16), where the second factor is for the rounding to 16 bits. Which
    numbers are kept takes log2 C(p, K) bits, or a little more (`fedfw.atoms.bits`).

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
        indices = first_top_k(x.abs(), min(self.k, x.shape[1]))
        values = to_bfloat16(x.gather(1, indices))
        return SparseValues(
            shape=shape, batched=True, precision=values.dtype, indices=indices, values=values, scale=1.0
        )

    def readers(self, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Readers:
        return {SparseValues: partial(SparseValues.read, shape=shape, k=min(self.k, sum(pieces)), scale=1.0)}
