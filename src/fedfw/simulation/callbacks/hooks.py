"""All callbacks of a run, called in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedfw.ranks import Ranks
from fedfw.rounds.checkpoints import part
from fedfw.rounds.records import Record
from fedfw.simulation.callbacks.base import AfterRound, Callback, PlainCallback, StopRun

if TYPE_CHECKING:
    from fedfw.simulation.result import Run
    from fedfw.simulation.simulator import Simulation

Callbacks = Callback | PlainCallback | Sequence[Callback | PlainCallback]
"""A user's callbacks: functions and `Callback` objects, one or several."""


def as_callbacks(wanted: Callbacks) -> list[Callback]:
    """Return the given callbacks, a single one or a sequence, as a list of `Callback`; functions
    are called after each round.
    """
    given = [wanted] if isinstance(wanted, Callback) or not isinstance(wanted, Sequence) else wanted
    callbacks = []
    for callback in given:
        if not (isinstance(callback, Callback) or callable(callback)):
            raise TypeError(
                f"callbacks={callback!r}, expected a function, a Callback, or a sequence of them"
            )
        callbacks.append(callback if isinstance(callback, Callback) else AfterRound(callback))
    return callbacks


class Hooks:
    """The callbacks of a run. Where several ranks share it, rank 0 calls those of the user, and the
    run ends for all ranks where one of them ends it.

    Parameters
    ----------
    callbacks : sequence of Callback
        In the order in which they are called; of the same classes on all ranks.
    ranks : Ranks
        The processes that share the run.
    """

    def __init__(self, callbacks: Sequence[Callback], ranks: Ranks) -> None:
        self._ranks = ranks
        self._some_on_first_rank = not all(callback.on_all_ranks for callback in callbacks)
        self.callbacks = [one for one in callbacks if ranks.first or one.on_all_ranks]

    def call(self, hook: str, simulation: Simulation) -> str | None:
        """Call a method of every callback; return why the first of those that end the run does so,
        or None.
        """
        reasons = []
        for callback in self.callbacks:
            stops, reason = self._ask(callback, hook, simulation)
            reasons.append(callback.reason if stops else reason)
        return self._first_of(reasons)

    def record(self, simulation: Simulation) -> tuple[dict[str, Any], str | None]:
        """Return the fields that callbacks give for the record, and the reason to end the run, if
        one gives one.
        """
        record_fields: dict[str, Any] = {}
        reasons = []
        for callback in self.callbacks:
            values, reason = self._ask(callback, "record", simulation)
            record_fields |= _fields_of(callback, values)
            reasons.append(reason)
        return record_fields, self._first_of(reasons)

    def finish(self, simulation: Simulation, run: Run) -> None:
        """Call the callbacks at the end of a run."""
        for callback in self.callbacks:
            with self._without_exchanges(callback):
                callback.finish(simulation, run)

    def _ask(self, callback: Callback, hook: str, simulation: Simulation) -> tuple[Any, str | None]:
        """Return the result of a callback's method, and its reason where it raises `StopRun`."""
        try:
            with self._without_exchanges(callback):
                return getattr(callback, hook)(simulation), None
        except StopRun as asked:
            return None, str(asked)

    def _without_exchanges(self, callback: Callback) -> AbstractContextManager[None]:
        """Refuse exchanges between ranks within, where rank 0 alone calls a callback."""
        if callback.on_all_ranks:
            return nullcontext()
        return self._ranks.local_only(f"the callback {type(callback).__name__}")

    def _first_of(self, reasons: Sequence[str | None]) -> str | None:
        """Return the first reason that is not None: that of rank 0, which has all callbacks."""
        found = next((reason for reason in reasons if reason is not None), None)
        if self._some_on_first_rank:
            found = self._ranks.broadcast_object(found)
        return found

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
            name = type(callback).__name__
            counts[name] += 1
            named[name if counts[name] == 1 else f"{name}-{counts[name]}"] = callback
        return named


def _fields_of(callback: Callback, values: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what a callback gave for the record; fields that a record does not have are
    refused.
    """
    unknown = [name for name in values or {} if name not in Record.__dataclass_fields__]
    if unknown:
        raise TypeError(
            f"{type(callback).__name__}.record gives {unknown}, expected fields of a Record"
        )
    return values or {}
