"""Vectors as bytes: whole, by the changed coordinates, or as a step that the receiver repeats."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedfw.algorithms.contract import Affine
from fedfw.atoms.bits import Reader
from fedfw.atoms.floats import floats_to_bytes, read_floats
from fedfw.atoms.index_sets import (
    Indices,
    fixed_nbytes,
    index_set_nbytes,
    read_index_set,
    write_index_set,
)
from fedfw.checks import Mask, bits_of, on_host, other_bits
from fedfw.errors import AtomError

WHOLE, CHANGED, REPEATED, UNCHANGED = 0, 1, 2, 3


_IN_FLOAT64 = 4
"""Added to the form of a vector whose numbers travel in float64; else they travel in float32."""


_NO_BITS = np.empty(0, np.uint8)


RATES_NBYTES = 16


@dataclass(frozen=True, eq=False)
class Encoding:
    """How one vector goes to one client: the number of bytes, and the function that writes them."""

    nbytes: int
    write: Callable[[], bytes]


def narrowest(x: Tensor) -> torch.dtype:
    """Return float32 where it holds all of x (p,) exactly, else float64; look at the numbers."""
    return torch.float32 if torch.equal(x.float().double(), x.double()) else torch.float64


def whole_nbytes(like: Tensor, precision: torch.dtype | None = None) -> int:
    """Return what a vector like (p,) weighs when it travels whole, in its own type or in another
    precision.
    """
    return 1 + like.shape[0] * (like.dtype if precision is None else precision).itemsize


def whole(x: Tensor, precision: torch.dtype | None = None) -> Encoding:
    """Return the encoding of x (p,) with all of its numbers, in a precision that holds them; by
    default the type of x.
    """
    precision = x.dtype if precision is None else precision
    return Encoding(
        whole_nbytes(x, precision),
        lambda: bytes([WHOLE | _flag(precision)]) + _values(x, precision),
    )


def encoded(
    x: Tensor, changed: Mask | None = None, precision: torch.dtype | None = None
) -> Encoding:
    """Return the encoding of x (p,): whole, or by the coordinates that the receiver does not hold,
    whichever is shorter.

    Parameters
    ----------
    x : Tensor
        (p,).
    changed : array, optional
        (p,) of bool: where x differs from what the receiver holds. By default where x is not zero,
        for a receiver that holds nothing.
    precision : torch.dtype, optional
        One that holds the numbers of x; by default its type.
    """
    changed = on_host(other_bits(x.detach())) if changed is None else changed
    precision = x.dtype if precision is None else precision
    nbytes = sparse_nbytes(changed, precision.itemsize)
    if nbytes >= whole_nbytes(x, precision):
        return whole(x, precision)
    places = np.flatnonzero(changed)
    indices = torch.from_numpy(places)
    flag = CHANGED | _flag(precision)

    def write() -> bytes:
        """Return the flag, and the coordinates that changed with their values."""
        return bytes([flag]) + _sparse(places, x.cpu()[indices], len(x), precision)

    return Encoding(nbytes, write)


def _flag(precision: torch.dtype) -> int:
    return _IN_FLOAT64 if precision is torch.float64 else 0


def _values(x: Tensor, precision: torch.dtype) -> bytes:
    """Return the numbers of x (k,) as bytes."""
    narrow = x.to(precision)
    assert torch.equal(bits_of(narrow.to(x.dtype)), bits_of(x)), (
        "numbers that do not fit the precision they travel in"
    )
    return floats_to_bytes(narrow)


def decoded(data: bytes, known: Tensor) -> Tensor:
    """Return the vector (p,) that ``data`` encodes for a receiver that holds ``known`` (p,).

    Raises
    ------
    AtomError
        For bytes that are no encoding.
    """
    reader = Reader(data)
    first = reader.take(1)[0]
    # The first byte is the form, and one bit of it says whether numbers are in float64.
    form = first & ~_IN_FLOAT64
    dtype = torch.float64 if first & _IN_FLOAT64 else torch.float32
    p = len(known)
    if form == WHOLE:
        x = read_floats(reader, (p,), dtype).to(known.dtype)
    elif form == CHANGED:
        indices, values = _read_sparse(reader, p, dtype)
        x = known.clone()
        x[indices] = values.to(known.dtype)
    elif form == REPEATED:
        keep, scale = np.frombuffer(reader.take(RATES_NBYTES), "<f8").tolist()
        if not (math.isfinite(keep) and math.isfinite(scale)):
            raise AtomError(f"rates {keep} and {scale} of a step, expected finite numbers")
        indices, values = _read_sparse(reader, p, dtype)
        total = torch.zeros_like(known)
        total[indices] = values.to(known.dtype)
        x = Affine(keep, scale, total).apply(known)
    elif first == UNCHANGED:
        x = known.clone()
    else:
        raise AtomError(f"form {first} of a vector, expected 0 to 6")
    reader.finish()
    return x


def decoded_alone(data: bytes, like: Tensor) -> Tensor:
    """The vector (p,) of ``data`` that refers to nothing the receiver holds; raises `AtomError`."""
    if not data or data[0] & ~_IN_FLOAT64 not in (WHOLE, CHANGED):
        raise AtomError("expected a vector that is whole or given by its coordinates")
    return decoded(data, torch.zeros_like(like))


def _sparse(places: Indices, values: Tensor, p: int, precision: torch.dtype) -> bytes:
    """Return the bytes of a sparse vector (p,): the number of its coordinates, the coordinates, and
    their values (k,).
    """
    return (
        len(places).to_bytes(4, "big")
        + write_index_set(places, p, _NO_BITS)
        + _values(values, precision)
    )


def sparse_nbytes(mask: Mask, itemsize: int) -> int:
    """Return the bytes of a sparse vector: of its numbers at the places where ``mask`` (p,) is
    True, and of these places.
    """
    k = int(np.count_nonzero(mask))
    p = len(mask)
    places = fixed_nbytes(k, p, 0)
    if places is None:
        places = index_set_nbytes(np.flatnonzero(mask)[None], p, 0)
    # The flag, and the number of coordinates.
    return 1 + 4 + places + k * itemsize


def _read_sparse(reader: Reader, p: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the coordinates and the values, (k,) each, that `_sparse` wrote."""
    k = int.from_bytes(reader.take(4), "big")
    if k > p:
        raise AtomError(f"{k} coordinates of {p}")
    indices, _ = read_index_set(reader, p, k, 0)
    return torch.from_numpy(indices), read_floats(reader, (k,), dtype)


@dataclass(frozen=True, eq=False)
class Repeat:
    """A step xbar <- keep xbar + scale total with a sparse ``total`` (p,), which clients can
    repeat.
    """

    keep: float
    scale: float
    total: Tensor
    precision: torch.dtype | None = None
    """One that holds the numbers of the total; by default its type."""

    def write(self) -> bytes:
        """Return the message: a flag, the rates keep and scale, and the sum's non-zero coordinates
        with their values.
        """
        total = self.total.cpu()
        precision = self.precision or total.dtype
        places = np.flatnonzero(on_host(other_bits(total)))
        rates = np.array([self.keep, self.scale], "<f8").tobytes()
        values = total[torch.from_numpy(places)]
        return (
            bytes([REPEATED | _flag(precision)])
            + rates
            + _sparse(places, values, len(total), precision)
        )
