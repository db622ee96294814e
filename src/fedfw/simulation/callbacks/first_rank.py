"""A user's callback where several ranks share a run: rank 0 calls it, and tells the others whether the run ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedfw.ranks import Ranks
from fedfw.simulation.callbacks.base import Callback, StopRun

if TYPE_CHECKING:
    from fedfw.simulation.result import Run
    from fedfw.simulation.simulator import Simulation


class OnFirstRank(Callback):
    """Calls another callback on rank 0 alone.

    Parameters
    ----------
    inner : Callback
        What is called.
    ranks : Ranks
        The processes that share the run.
    """

    def __init__(self, inner: Callback, ranks: Ranks) -> None:
        self._inner, self._ranks = inner, ranks

    @property
    def name(self) -> str:
        return self._inner.name

    def has(self, hook: str) -> bool:
        return self._inner.has(hook) and (self._ranks.first or self._inner.decides)

    def _call(self, hook: str, simulation: Simulation) -> bool:
        stop, reason = False, ""
        if self._ranks.first:
            try:
                with self._ranks.apart(f"the callback {self.name}"):
                    stop, reason = bool(getattr(self._inner, hook)(simulation)), self._inner.reason
            except StopRun as asked:
                stop, reason = True, str(asked)
        if self._inner.decides:
            stop, reason = self._ranks.tell([stop, reason])
        self.reason = reason
        return stop

    def before_round(self, simulation: Simulation) -> bool | None:
        return self._call("before_round", simulation)

    def after_gather(self, simulation: Simulation) -> bool | None:
        return self._call("after_gather", simulation)

    def after_round(self, simulation: Simulation) -> bool | None:
        return self._call("after_round", simulation)

    def record(self, simulation: Simulation) -> Mapping[str, Any]:
        found: Mapping[str, Any] = {}
        asked: str | None = None
        if self._ranks.first:
            try:
                with self._ranks.apart(f"the callback {self.name}"):
                    found = self._inner.record(simulation)
            except StopRun as stop:
                asked = str(stop)
        asked = self._ranks.tell(asked) if self._inner.decides else asked
        if asked is not None:
            raise StopRun(asked)
        return found

    def finish(self, simulation: Simulation, run: Run) -> None:
        if self._ranks.first:
            with self._ranks.apart(f"the callback {self.name}"):
                self._inner.finish(simulation, run)

    def abandon(self, simulation: Simulation) -> None:
        if self._ranks.first:
            self._inner.abandon(simulation)

    def state(self) -> dict[str, Tensor]:
        return self._inner.state() if self._ranks.first else {}

    def load(self, held: dict[str, Tensor]) -> None:
        if self._ranks.first:
            self._inner.load(held)
