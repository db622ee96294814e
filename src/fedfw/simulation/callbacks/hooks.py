"""All callbacks of a run, called in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedfw.rounds.checkpoints import part
from fedfw.rounds.records import Record
from fedfw.simulation.callbacks.base import (
    HOOKS,
    AfterRound,
    Callback,
    PlainCallback,
    StopRun,
)

if TYPE_CHECKING:
    from fedfw.simulation.simulator import Simulation

Callbacks = Callback | PlainCallback | Sequence[Callback | PlainCallback]
"""A user's callbacks: functions and `Callback` objects, one or several."""


def as_callbacks(wanted: Callbacks) -> list[Callback]:
    """Return what was given as callbacks, which may be a single one, as a list of `Callback`."""
    given = [wanted] if isinstance(wanted, Callback) or not isinstance(wanted, Sequence) else wanted
    found = []
    for callback in given:
        if not (isinstance(callback, Callback) or callable(callback)):
            raise TypeError(
                f"callbacks={callback!r}, expected a function, a Callback, or a sequence of them"
            )
        found.append(callback if isinstance(callback, Callback) else AfterRound(callback))
    return found


class Hooks:
    """The callbacks of a run.

    Parameters
    ----------
    callbacks : sequence of Callback
        In the order in which they are called.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)
        self._by_hook = {
            hook: [callback for callback in callbacks if callback.has(hook)] for hook in HOOKS
        }

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def call(self, hook: str, simulation: Simulation) -> str | None:
        """Call a method of every callback that has one; return why the first of those that end the
        run does so, or None.
        """
        found: str | None = None
        for callback in self._by_hook[hook]:
            try:
                stops = getattr(callback, hook)(simulation)
                reason = callback.reason
            except StopRun as asked:
                stops = True
                reason = str(asked)
            if stops and found is None:
                found = reason
        return found

    def record(self, simulation: Simulation) -> tuple[dict[str, Any], str | None]:
        """Return what callbacks give for the record, and why they end the run, if they do."""
        found: dict[str, Any] = {}
        reason: str | None = None
        for callback in self._by_hook["record"]:
            try:
                found |= _fields_of(callback, callback.record(simulation))
            except StopRun as asked:
                reason = reason or str(asked)
        return found, reason

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return what a checkpoint must hold of every callback, by its name."""
        return {name: callback.state() for name, callback in self._named().items()}

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave, joined with other parts."""
        for name, callback in self._named().items():
            kept = part(held, name)
            if kept:
                callback.load(kept)

    def _named(self) -> dict[str, Callback]:
        """Return every callback by the name of its class, the second of a class with a number."""
        counts: Counter[str] = Counter()
        named = {}
        for callback in self.callbacks:
            name = callback.name
            counts[name] += 1
            named[name if counts[name] == 1 else f"{name}-{counts[name]}"] = callback
        return named


def _fields_of(callback: Callback, found: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what a callback gave for the record; fields that a record does not have are
    refused.
    """
    strange = [name for name in found or {} if name not in Record.__dataclass_fields__]
    if strange:
        raise TypeError(
            f"{type(callback).__name__}.record gives {strange}, expected fields of a Record"
        )
    return found or {}
