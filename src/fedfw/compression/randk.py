"""`randk:K`: K numbers that are drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedfw.atoms import Atom, DrawnValues
from fedfw.atoms.floats import to_bfloat16
from fedfw.compression.base import Compressor, Readers
from fedfw.randomness import generator
from fedfw.sets.base import Shape


@dataclass(frozen=True)
class RandK(Compressor):
    """K numbers in bfloat16, at places that follow from the draw; all p of them where K is above p.

    Both sides know the draw, the round, so nothing says where the numbers stand, and all clients of a round send the
    same places. They are not scaled by p/K: the mean of C(v) is then not v, but v loses nothing that error feedback
    does not bring. No draw makes ||C(v) - v|| longer than ||v||, and over the draws it is a contraction in the mean,
    with alpha = K/p (1 - 2^-16).

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
        # int() refuses what stands for the round while a GPU's steps are recorded: they would repeat one draw.
        order = torch.randperm(p, generator=generator(0, "randk", int(draw)))
        return order[: min(self.k, p)].sort().values.to(device)

    def encode(self, x: Tensor, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Atom:
        places = self._places(x.shape[1], draw, x.device)
        values = to_bfloat16(x[:, places])
        return DrawnValues(shape=shape, batched=True, precision=values.dtype, indices=places, values=values)

    def readers(self, shape: Shape, pieces: Sequence[int], *, draw: int = 0) -> Readers:
        places = self._places(sum(pieces), draw, torch.device("cpu"))
        return {DrawnValues: partial(DrawnValues.read, shape=shape, indices=places)}
