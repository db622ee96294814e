"""Conditions on numbers: looked at where they stand, or noted for later where looking would make a GPU wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

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
