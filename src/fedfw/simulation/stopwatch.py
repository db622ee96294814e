"""Where a round's time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_PARTS = {"gradient": 0.0, "oracle": 0.0, "projection": 0.0, "evaluation": 0.0}


class Stopwatch:
    """Splits a round's seconds into gradient, oracle, projection, evaluation and the rest."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._parts, self._begin = device, _PARTS.copy(), 0.0

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    @contextmanager
    def round(self) -> Iterator[None]:
        self._parts, self._begin = _PARTS.copy(), self._now()
        yield

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            begin = self._now()
            result = function(*arguments, **options)
            self._parts[part] += self._now() - begin
            return result

        return wrapped

    def split(self) -> dict[str, float]:
        rest = self._now() - self._begin - sum(self._parts.values())
        return {**self._parts, "rest": rest}
