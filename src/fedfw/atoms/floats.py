"""Floating-point numbers on the wire, and rounding that never leaves the set."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.atoms.bits import Reader
from fedfw.errors import AtomError

_NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.float16: np.dtype("<f2"),
    torch.float32: np.dtype("<f4"),
    torch.float64: np.dtype("<f8"),
}


def floats_to_bytes(values: Tensor) -> bytes:
    """Values in row-major order, little-endian, in their own precision."""
    array: npt.NDArray[Any] = values.detach().cpu().contiguous().numpy()
    return array.astype(_NUMPY[values.dtype], copy=False).tobytes()


def read_floats(reader: Reader, shape: tuple[int, ...], precision: torch.dtype) -> Tensor:
    """The inverse of `floats_to_bytes`; NaN and infinities are refused."""
    dtype = _NUMPY[precision]
    values = np.frombuffer(reader.take(prod(shape) * dtype.itemsize), dtype).reshape(shape)
    if not np.isfinite(values).all():
        raise AtomError("a value is not finite")
    return torch.from_numpy(values.astype(dtype.newbyteorder("="), copy=True))


def round_inside(unit: Tensor, precision: torch.dtype, spread: float = 1.0) -> Tensor:
    """Round points of a norm's unit ball to ``precision`` without leaving the ball.

    Rounding to nearest moves a point by at most eps/2 of each coordinate, so by ``spread`` * eps/2 in the norm, where
    ``spread`` bounds the norm of |s| taken coordinate by coordinate over the norm of s (1 for l2 and other norms that
    only look at magnitudes; the Frobenius norm for spectral ones). Shrinking by four times that first
    leaves room for the rounding of the computation itself.
    """
    return (unit * (1 - 2 * spread * torch.finfo(precision).eps)).to(precision)
