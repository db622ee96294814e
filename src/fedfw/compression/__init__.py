"""Compressors: vectors in fewer bytes, with the same bits on both sides."""

from collections.abc import Callable

from fedfw.compression.base import Compress, CompressDown, Compressor, Readers
from fedfw.compression.numbers import Bits, RandK, Sign, TopK
from fedfw.compression.pursuit import Pursuit
from fedfw.compression.rank import Rank

_WITH_A_NUMBER: dict[str, Callable[[int], Compressor]] = {
    "topk": TopK,
    "randk": RandK,
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
    name, _, number = text.partition(":")
    if name in _WITH_A_NUMBER:
        return _WITH_A_NUMBER[name](int(number))
    return Sign() if name == "sign" else None


__all__ = [
    "Bits",
    "Compress",
    "CompressDown",
    "Compressor",
    "Pursuit",
    "RandK",
    "Rank",
    "Readers",
    "Sign",
    "TopK",
    "make_compressor",
]
