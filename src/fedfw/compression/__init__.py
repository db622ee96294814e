"""Compressors: vectors in fewer bytes, with the same bits on both sides."""

from collections.abc import Callable, Sequence
from math import prod

import torch

from fedfw.compression.base import (
    CompressDownOption,
    CompressOption,
    Compressor,
    Readers,
    compress_down_option,
    compress_option,
)
from fedfw.compression.numbers import Bits, TopK
from fedfw.compression.pursuit import Pursuit
from fedfw.compression.rank import Rank
from fedfw.sets.base import ConstraintSet, Shape

_COMPRESSORS: dict[str, Callable[[int], Compressor]] = {
    "topk": TopK,
    "bits": Bits,
    "rank": Rank,
    "atoms": Pursuit,
}


def make_compressor(text: str) -> Compressor | None:
    """The compressor that the option ``compress`` names; None for "none".

    Examples
    --------
    >>> from fedfw.compression import make_compressor
    >>> make_compressor("bits:4"), make_compressor("topk:64"), make_compressor("none")
    (Bits(bits=4), TopK(k=64), None)
    """
    if text == "none":
        return None
    name, _, size = text.partition(":")
    return _COMPRESSORS[name](int(size))


def validate_useful(
    text: str, constraint: ConstraintSet, shape: Shape, shapes: Sequence[Shape]
) -> None:
    """Refuse a compressor whose messages would be longer than the vector itself, or that fits no
    parameter.
    """
    compressor = make_compressor(text)
    p = prod(shape)
    if compressor is None:  # "none"
        return
    bound = compressor.bind(constraint, shapes)
    nbytes = bound.encode(torch.ones(1, p), shape, constraint.pieces(shape)).nbytes
    if nbytes > 1 + 4 * p:  # a dense atom: a frame of one byte, and p numbers in float32
        raise ValueError(
            f"compress={text!r}, expected something shorter: with {constraint!r} a message has "
            f"{nbytes} bytes, and {p} numbers as they are have {1 + 4 * p}"
        )


__all__ = [
    "Bits",
    "CompressDownOption",
    "CompressOption",
    "Compressor",
    "Pursuit",
    "Rank",
    "Readers",
    "TopK",
    "compress_down_option",
    "compress_option",
    "make_compressor",
    "validate_useful",
]
