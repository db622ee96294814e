"""Conditions on numbers: looked at where they stand, or noted for later where looking would make a GPU wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_INTEGERS = {torch.float16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}


def bits_of(x: Tensor) -> Tensor:
    """The bits of floating-point numbers as integers of the same shape: 0.0 and -0.0 are equal numbers of other bits.

    Examples
    --------
    >>> import torch
    >>> (bits_of(torch.tensor([0.0, -0.0])) != 0).tolist()
    [False, True]
    """
    return x.view(_INTEGERS[x.dtype])


_noted: ContextVar[list[Tensor] | None] = ContextVar("noted", default=None)


def holds(condition: Tensor) -> bool:
    """Whether all entries of ``condition`` are true; where checks are postponed it is noted and taken to be so."""
    noted = _noted.get()
    if noted is None:
        return bool(condition.all())
    noted.append(condition)
    return True


def are_finite(numbers: Tensor) -> bool:
    """Whether ``numbers`` has neither NaN nor infinity; where checks are postponed it is noted and taken to be so."""
    noted = _noted.get()
    if noted is None:
        return bool(numbers.isfinite().all())
    noted.append(numbers)  # the host works it out: on a GPU that would be four kernels
    return True


@contextmanager
def postponed() -> Iterator[list[Tensor]]:
    """Within, `holds` and `are_finite` look at nothing: what they were given is in this list, for whoever looks later.

    That is conditions (of bool), and numbers that are to be finite.
    """
    noted: list[Tensor] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)
