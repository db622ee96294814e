"""Conditions on numbers: looked at where they stand, or noted for later where looking would make a GPU wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor


def bits_of(x: Tensor) -> Tensor:
    """The bits of floating-point numbers as integers of the same shape: 0.0 and -0.0 are equal numbers of other bits.

    Examples
    --------
    >>> import torch
    >>> (bits_of(torch.tensor([0.0, -0.0])) != 0).tolist()
    [False, True]
    """
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


_noted: ContextVar[list[Tensor] | None] = ContextVar("noted", default=None)


def holds(condition: Tensor) -> bool:
    """Whether all entries of ``condition`` are true; where checks are postponed it is noted and taken to be so."""
    noted = _noted.get()
    if noted is None:
        return bool(condition.all())
    noted.append(condition)
    return True


@contextmanager
def postponed() -> Iterator[list[Tensor]]:
    """Within, `holds` looks at nothing: its conditions are in this list, for whoever looks later."""
    noted: list[Tensor] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)
