"""Vectors in few bits a number, and points that are sent as their difference from one that both
sides hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedfw.atoms.bits import Reader, pack_numbers, packed_nbytes, read_numbers
from fedfw.atoms.composite import SentAs
from fedfw.atoms.dense import DenseAtom
from fedfw.atoms.floats import floats_to_bytes, read_floats, to_bfloat16
from fedfw.errors import AtomError

BLOCK = 128
"""The number of consecutive numbers that share a scale."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Quantised(DenseAtom):
    """A vector whose numbers are multiples of a step, in blocks that have each a step of their own.

    With b bits a number is one of the 2L + 1 multiples -L, ..., L of its block's step, where L =
    2^(b-1) - 1, and the scale of a block, L times its step, is its largest magnitude in bfloat16.
    What `nearest` makes differs from the vector by at most ``scale / (2 L)`` in each number. Zeros
    stay zeros. A block has up to 128 numbers and does not extend over two parameters, whose numbers
    may be of different sizes.

    Parameters
    ----------
    levels : Tensor
        The multiples, int8, of shape (n, p).
    scales : Tensor
        The blocks' scales, of shape (n, blocks), in bfloat16.
    bits : int
        b: 2, 4 or 8; it is not sent.
    sizes : tuple of int
        The lengths of the consecutive pieces in which blocks begin anew; they add up to p and are
        not sent.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms import Quantised
    >>> atoms = Quantised.nearest(
    ...     torch.tensor([[0.9, -0.2, 0.0, 7.0]]), shape=(4,), bits=4, sizes=(4,)
    ... )
    >>> atoms.dense().tolist(), atoms[0].nbytes
    ([[1.0, 0.0, 0.0, 7.0]], 5)
    """

    tag: ClassVar[int] = 11
    stacked: ClassVar[tuple[str, ...]] = ("levels", "scales")

    levels: Tensor  # (n, p) int8
    scales: Tensor  # (n, blocks) in bfloat16
    bits: int
    sizes: tuple[int, ...]

    @classmethod
    def nearest(cls, x: Tensor, *, shape: tuple[int, ...], bits: int, sizes: Sequence[int]) -> Self:
        """Return the stack of the nearest vectors to x, with multiples of ``scale / largest`` in
        each block, where scale is the largest magnitude of the block.

        Parameters
        ----------
        x : Tensor
            Shape (n, p), finite; its dtype is the atoms' precision.
        shape : tuple of int
            The shape of one value, with p entries.
        bits : int
            2, 4 or 8.
        sizes : sequence of int
            The lengths of the pieces in which blocks begin anew; they add up to p.
        """
        sizes = tuple(sizes)
        places = _places(sizes, x.device)
        padded = x.new_zeros(len(x), _blocks(sizes) * BLOCK).index_copy_(1, places, x.abs())
        scales = to_bfloat16(padded.view(len(x), -1, BLOCK).amax(2))
        block_scales = scales.to(x.dtype)[:, places // BLOCK]
        largest = _largest(bits)
        # Rounding of a scale to bfloat16 can put the largest number of a block above it: clamp.
        levels = (
            (torch.where(block_scales > 0, x / block_scales, 0.0) * largest)
            .round()
            .clamp(-largest, largest)
            .to(torch.int8)
        )
        return cls(
            shape=shape,
            batched=True,
            precision=x.dtype,
            levels=levels,
            scales=scales,
            bits=bits,
            sizes=sizes,
        )

    @classmethod
    def read(
        cls,
        reader: Reader,
        precision: torch.dtype,
        *,
        shape: tuple[int, ...],
        bits: int,
        sizes: tuple[int, ...],
    ) -> Self:
        """Decode the payload of one atom; the keyword arguments are what is not sent."""
        scales = read_floats(reader, (1, _blocks(sizes)), torch.bfloat16)
        largest = _largest(bits)
        if bool((scales < 0).any()):
            raise AtomError(f"a scale of {float(scales.min())}, expected at least 0")
        levels = torch.from_numpy(read_numbers(reader, prod(shape), bits)).to(torch.int16) - largest
        # Levels are -largest, ..., largest, one fewer than the bits can say.
        if bool((levels > largest).any()):
            raise AtomError(f"a level of {largest + 1}, expected at most {largest}")
        return cls(
            shape=shape,
            precision=precision,
            levels=levels.to(torch.int8)[None],
            scales=scales,
            bits=bits,
            sizes=sizes,
        )

    @property
    def kind(self) -> str:
        return f"{self.bits} bits"

    def _dense(self, dtype: torch.dtype) -> Tensor:
        steps = self.scales.to(self.precision) / _largest(self.bits)
        block = _places(self.sizes, steps.device) // BLOCK
        return (steps[:, block] * self.levels.to(steps.dtype)).to(dtype)

    def _payload(self) -> bytes:
        codes = (self.levels[0].to(torch.int16) + _largest(self.bits)).to(torch.uint8)
        return floats_to_bytes(self.scales) + pack_numbers(codes.cpu().numpy(), self.bits)

    def _payload_nbytes(self) -> int:
        levels = len(self) * packed_nbytes(prod(self.shape), self.bits)
        return self.scales.numel() * self.scales.element_size() + levels


def _largest(bits: int) -> int:
    """Return L, the largest multiple of a step."""
    return (1 << bits - 1) - 1


def _blocks(sizes: Sequence[int]) -> int:
    """Return how many blocks pieces of these sizes have."""
    return sum(-(-size // BLOCK) for size in sizes)


@lru_cache(maxsize=64)
def _places(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return where each coordinate (p,) stands when every piece is filled up to whole blocks."""
    begins = [BLOCK * _blocks(sizes[:i]) for i in range(len(sizes))]
    pieces = [torch.arange(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
    return torch.cat(pieces).to(device)


@dataclass(frozen=True, eq=False, kw_only=True)
class Moved(SentAs, DenseAtom):
    """A point that is sent as its difference from one that both sides hold; all but the difference
    is worked out.

    Parameters
    ----------
    values : Tensor
        The points, of shape (n, p), in the precision of the atom.
    inner : Atom
        What is sent, one atom or a stack of n.
    shape, batched, precision, bound
        As for `Atom`.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms import Moved, Quantised
    >>> move = Quantised.nearest(torch.tensor([[1.0, -7.0]]), shape=(2,), bits=4, sizes=(2,))
    >>> point = Moved(
    ...     shape=(2,), batched=True, values=torch.tensor([[10.0, 10.0]]) + move.dense(), inner=move
    ... )
    >>> point.dense().tolist(), point.nbytes == move.nbytes
    ([[11.0, 3.0]], True)
    """

    stacked: ClassVar[tuple[str, ...]] = ("values",)

    values: Tensor  # (n, p) in the atom's precision

    def _dense(self, dtype: torch.dtype) -> Tensor:
        return self.values.to(dtype)
