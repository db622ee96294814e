"""Floating-point numbers as bytes, rounding to 16 bits, and rounding that stays inside the set."""

from math import prod

import numpy as np
import torch
from torch import Tensor

from fedfw.atoms.bits import Reader
from fedfw.errors import AtomError


def floats_to_bytes(values: Tensor) -> bytes:
    """Return numbers as bytes, in row-major order and in their own precision; little-endian, as
    the machines are on which PyTorch runs.

    Parameters
    ----------
    values : Tensor
        Float16, bfloat16, float32 or float64, of any shape.

    Returns
    -------
    bytes
        The encoding.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms.floats import floats_to_bytes
    >>> floats_to_bytes(torch.tensor([1.0])).hex()
    '0000803f'
    """
    return values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def read_floats(reader: Reader, shape: tuple[int, ...], precision: torch.dtype) -> Tensor:
    """Decode numbers; the inverse of `floats_to_bytes`.

    Parameters
    ----------
    reader : Reader
        The bytes.
    shape : tuple of int
        The shape of the result.
    precision : torch.dtype
        float16, bfloat16, float32 or float64.

    Returns
    -------
    Tensor
        The numbers.

    Raises
    ------
    AtomError
        If there are too few bytes, or a number is a NaN or an infinity.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms.bits import Reader
    >>> from fedfw.atoms.floats import read_floats
    >>> read_floats(Reader(bytes.fromhex("0000803f")), (1,), torch.float32).tolist()
    [1.0]
    """
    data = bytearray(reader.take(prod(shape) * precision.itemsize))
    values = torch.from_numpy(np.frombuffer(data, np.uint8)).view(precision).reshape(shape)
    if not bool(values.isfinite().all()):
        raise AtomError("a value is not finite")
    return values


def to_bfloat16(x: Tensor) -> Tensor:
    """Return the nearest numbers of bfloat16, which has the range of float32 and 8 binary digits.

    Parameters
    ----------
    x : Tensor
        Float32 or float64, of any shape.

    Returns
    -------
    Tensor
        bfloat16, of the same shape. A number changes by at most 1/256 of itself, and if it is below
        1e-38 by less than itself; what is beyond the range becomes the largest number there is.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms.floats import to_bfloat16
    >>> to_bfloat16(torch.tensor([1.0, 1.001, -3.4e38])).tolist()
    [1.0, 1.0, -3.3895313892515355e+38]
    """
    largest = torch.finfo(torch.bfloat16).max
    return x.clamp(-largest, largest).to(torch.bfloat16)


def round_inside(unit: Tensor, precision: torch.dtype, spread: float = 1.0) -> Tensor:
    """Round points of the unit ball of a norm to a precision without leaving the ball.

    Parameters
    ----------
    unit : Tensor
        Points of the unit ball, of any shape.
    precision : torch.dtype
        float16, float32 or float64.
    spread : float, default 1.0
        An upper bound on the norm of ``|s|``, with the magnitudes taken entry by entry, over the
        norm of s. It is 1 for norms that depend on magnitudes only, such as l2, and sqrt(k) for
        spectral norms of matrices of rank k.

    Returns
    -------
    Tensor
        The rounded points, in ``precision``.

    Notes
    -----
    Rounding to nearest changes every entry by at most a factor ``1 +- eps / 2``, and so moves a
    point by at most ``spread * eps / 2`` in the norm. The points are shrunk by four times that
    before they are rounded, which leaves room for the rounding errors of the computation itself.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms.floats import round_inside
    >>> s = round_inside(torch.tensor([0.6, 0.8], dtype=torch.float64), torch.float16)
    >>> s.dtype, bool(s.double().norm() <= 1)
    (torch.float16, True)
    """
    return (unit * (1 - 2 * spread * torch.finfo(precision).eps)).to(precision)


def scaled_into(
    x: Tensor, bound: Tensor, r: float, precision: torch.dtype, spread: float = 1.0
) -> Tensor:
    """Scale points into the ball of radius r of a norm, and round them to a precision without
    leaving the ball.

    Parameters
    ----------
    x : Tensor
        The points, float64, of shape (n, p).
    bound : Tensor
        Upper bounds on their norms, up to the rounding of a sum of p terms in float64, of shape
        (n,).
    r : float
        The radius.
    precision : torch.dtype
        float16, float32 or float64.
    spread : float, default 1.0
        As for `round_inside`.

    Returns
    -------
    Tensor
        The rounded points, in ``precision``; those that lie well inside are only rounded.

    Examples
    --------
    >>> import torch
    >>> from fedfw.atoms.floats import scaled_into
    >>> x = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    >>> scaled_into(x, x.norm(dim=1), 2.0, torch.float64).round(decimals=4).tolist()
    [[1.2, 1.6], [0.0, 1.0]]
    """
    room = 2 * spread * torch.finfo(precision).eps + x.shape[1] * torch.finfo(torch.float64).eps
    factor = (r * (1 - room) / bound.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1)
    return (x * factor[:, None]).to(precision)
