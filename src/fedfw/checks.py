"""Conditions on numbers: looked at where they stand, or noted for later where looking would make a
GPU wait.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite, sqrt

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Mask = npt.NDArray[np.bool_]
_INTEGERS = {torch.float16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}


def bits_of(x: Tensor) -> Tensor:
    """Return the bits of floating-point numbers as integers of the same shape: 0.0 and -0.0 are
    equal numbers of other bits.

    Examples
    --------
    >>> import torch
    >>> (bits_of(torch.tensor([0.0, -0.0])) != 0).tolist()
    [False, True]
    """
    return x.view(_INTEGERS[x.dtype])


def other_bits(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Return where the bits of x differ from those of y, which has its shape; by default from those
    of zeros.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([0.0, -0.0, 1.0])
    >>> other_bits(x).tolist(), other_bits(x, torch.tensor([0.0, -0.0, 2.0])).tolist()
    ([False, True, True], [False, False, True])
    """
    return bits_of(x) != (0 if y is None else bits_of(y))


def beyond_float32(x: Tensor) -> Tensor:
    """Return where float32 does not hold the numbers of x exactly.

    Examples
    --------
    >>> import torch
    >>> beyond_float32(torch.tensor([0.5, 0.1], dtype=torch.float64)).tolist()
    [False, True]
    """
    return x.float() != x


def on_host(mask: Tensor | Mask) -> Mask:
    """Return such a mask on the host; of a tensor it is a copy, because a GPU's next replay
    overwrites what this one gave.

    Examples
    --------
    >>> import torch
    >>> on_host(torch.tensor([True, False]))
    array([ True, False])
    """
    if isinstance(mask, np.ndarray):
        return mask
    copied: Mask = mask.cpu().numpy().copy()
    return copied


_FEW = 1024
"""Numbers up to which all of them are copied to the host, where longer vectors are added up first.
"""
_LEAST_NORM = 1e-12
"""A norm below which squares may underflow in float32."""
_noted: ContextVar[list[Tensor] | None] = ContextVar("noted", default=None)


def is_postponed() -> bool:
    """Return whether checks are noted for later.

    Examples
    --------
    >>> with postponed():
    ...     print(is_postponed())
    True
    """
    return _noted.get() is not None


def holds(condition: Tensor) -> bool:
    """Return whether all entries of ``condition`` are true; where checks are postponed it is noted
    and taken to be so.
    """
    noted = _noted.get()
    if noted is None:
        return bool(condition.all())
    noted.append(condition)
    return True


def all_finite(x: Tensor) -> bool:
    """Return whether no entry of x is a NaN or an infinity; where checks are postponed, note x for
    a later check and return True.

    A sum takes one fast pass, and is finite only if all entries are. Where it is not, the entries
    themselves are checked, because a sum of finite numbers can also overflow.

    Examples
    --------
    >>> import torch
    >>> all_finite(torch.tensor([3e38, 3e38])), all_finite(torch.tensor([1.0, float("nan")]))
    (True, False)
    """
    noted = _noted.get()
    if noted is not None:
        # The host checks what is noted: a few numbers themselves, more by the sums of rows, because
        # a check on a GPU would take four kernels.
        noted.append(x if x.ndim == 1 and x.shape[0] <= _FEW else x.sum(-1).view(-1))
        return True
    return isfinite(x.sum().item()) or bool(x.isfinite().all())


def rows_within(x: Tensor, limit: float) -> bool:
    """Return whether all rows of x (n, p) are finite and have an l2 norm of at most ``limit``,
    which is a finite number.

    Where checks are postponed it is noted and taken to be so.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    >>> rows_within(x, 5.0), rows_within(x, 4.0), rows_within(x * float("nan"), 5.0)
    (True, False, False)
    """
    if limit < _LEAST_NORM:
        return holds(x.abs().amax(1) * sqrt(x.shape[1]) <= limit)
    # In float64, because float32 would take a large limit for infinity.
    return holds(torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) <= limit)


@contextmanager
def postponed() -> Iterator[list[Tensor]]:
    """Postpone the checks of `holds` and `all_finite` in a block: what they would have checked is
    in the list that this yields: conditions (of bool), and numbers that are to be finite.
    """
    noted: list[Tensor] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


@contextmanager
def immediate() -> Iterator[None]:
    """Let `holds` and `all_finite` look at what they are given within, even inside of `postponed`.

    It is for numbers that are worked out once and kept, which a replayed round does not work out
    again.

    Examples
    --------
    >>> import torch
    >>> with postponed() as noted, immediate():
    ...     print(all_finite(torch.tensor([float("nan")])))
    False
    >>> noted
    []
    """
    token = _noted.set(None)
    try:
        yield
    finally:
        _noted.reset(token)


def warn_of_identifiers(names: Sequence[str], columns: Tensor, source: str) -> None:
    """Warn of inputs (m, f) that number the samples: values that go up or down by 1 from row to
    row, or distinct values in a column that is named like an identifier.
    """
    for j, name in enumerate(names):
        values = columns[:, j].double()
        steps = values.diff()
        # In fewer rows such numbers may be a coincidence.
        numbered = len(values) > 4 and bool((steps.abs() == 1).all() & (steps == steps[0]).all())
        named = name.lower() in ("id", "index", "unnamed: 0") or name.lower().endswith("_id")
        if numbered or (named and len(set(values.tolist())) == len(values)):
            warnings.warn(
                f"{source}: the input {name!r} has another number for each sample, as an "
                "identifier has: leave the column out if it is one",
                stacklevel=3,
            )
