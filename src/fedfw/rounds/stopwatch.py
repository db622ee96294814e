"""Where a round's time goes."""

import time
from collections.abc import Callable
from copy import copy
from typing import Any

import torch

from fedfw.sets.base import ConstraintSet

_PARTS = {"gradient": 0.0, "oracle": 0.0, "projection": 0.0, "evaluation": 0.0}
Moment = Any
"""An event in a GPU's queue, or a time of `time.perf_counter`."""


class Stopwatch:
    """Splits a round's seconds into gradient, oracle, projection, evaluation and the rest.

    A round that is replayed as a whole has ``steps`` in place of the first three. On a GPU a moment
    is an event in its queue: the host waits for them once a round, not at every part.
    """

    def __init__(self, device: torch.device) -> None:
        """Choose the clock: events of the GPU's stream, or the system's clock."""
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._begin = 0.0  # of the round, by time.perf_counter
        self._spans: list[tuple[str, Moment, Moment]] = []  # part of the round, begin, end
        self._now: Callable[[], Moment] = self._event if self._on_gpu else time.perf_counter

    def _event(self) -> Moment:
        """Put an event into the GPU's queue, and return it."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def begin(self) -> None:
        """A new round begins."""
        self._spans = []
        self._begin = time.perf_counter()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with the time of each of its calls added to a part of the round."""

        def wrapped(*arguments: Any, **options: Any) -> Any:
            """Call the function, and note when it began and ended."""
            begin = self._now()
            result = function(*arguments, **options)
            self._spans.append((part, begin, self._now()))
            return result

        return wrapped

    def add(self, part: str, begin: float) -> None:
        """A part that began at ``begin`` by `time.perf_counter`, and has waited for the GPU
        itself.
        """
        self._spans.append((part, begin, time.perf_counter()))

    def split(self) -> dict[str, float]:
        """Return the seconds of each part so far, and of the rest."""
        if self._on_gpu and any(isinstance(end, torch.cuda.Event) for _, _, end in self._spans):
            # Events on a GPU have times only when they have happened.
            torch.cuda.synchronize(self._device)
        parts = _PARTS.copy()
        for part, begin, end in self._spans:
            parts[part] = parts.get(part, 0.0) + _seconds(begin, end)
        rest = time.perf_counter() - self._begin - sum(parts.values())
        return {**parts, "rest": rest}


def timed_set(constraint: ConstraintSet, clock: Stopwatch) -> ConstraintSet:
    """Return a copy of a set whose oracle and projection are timed."""
    timed = copy(constraint)
    # Attributes of the object stand before the methods of its class, which is frozen.
    object.__setattr__(timed, "lmo", clock.timed("oracle", constraint.lmo))
    object.__setattr__(timed, "project", clock.timed("projection", constraint.project))
    return timed


def _seconds(begin: Moment, end: Moment) -> float:
    """Return the seconds between two moments, both events or both times."""
    if isinstance(begin, torch.cuda.Event):
        return float(begin.elapsed_time(end)) / 1e3
    return float(end - begin)
