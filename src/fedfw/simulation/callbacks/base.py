"""The base class of callbacks: an object whose methods are called around the rounds, or a plain
function after each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedfw.ranks import Ranks

if TYPE_CHECKING:
    from fedfw.simulation.result import Run
    from fedfw.simulation.simulator import Simulation

PlainCallback = Callable[["Simulation"], Any]
"""A function that is called after every round; it ends the run by returning True or raising
`StopRun`.
"""


HOOKS = ("before_round", "record", "after_round")
"""The methods that are called in every round."""


class StopRun(Exception):  # noqa: N818 (it is no error, like StopIteration)
    """Raised in a callback to end the run after the present round; the run is kept and returned.

    Parameters
    ----------
    reason : str
        Why, for `Run.stopped`.

    Examples
    --------
    >>> import fedfw
    >>> def enough(simulation):
    ...     if simulation.history[-1].loss < 10.5:
    ...         raise fedfw.StopRun("the loss is low enough")
    >>> algorithm = fedfw.FrankWolfe(fedfw.Box(-1.0, 1.0))
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, callbacks=enough)
    >>> run.stopped, len(run.history) < 100
    ('the loss is low enough', True)
    """

    def __init__(self, reason: str = "a callback ended it") -> None:
        super().__init__(reason)


class Callback:
    """The base of callbacks with more than one thing to do; every method may be left out.

    A method that returns True ends the run, with ``reason`` as the reason; so does raising
    `StopRun`. Where several ranks share a run, a callback that is given to `fedfw.simulate` is
    called on rank 0, and ends the run for all.

    Examples
    --------
    >>> import fedfw
    >>> class Patience(fedfw.Callback):
    ...     reason = "the loss did not fall"
    ...
    ...     def after_round(self, simulation):
    ...         losses = [record.loss for record in simulation.history[-3:]]
    ...         return len(losses) == 3 and losses[-1] >= losses[0]
    >>> algorithm = fedfw.FrankWolfe(fedfw.Box(-1.0, 1.0))
    >>> fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, callbacks=Patience()).stopped
    'the loss did not fall'
    """

    reason: str = "a callback ended it"
    decides: bool = True
    """It may end a run or add to a record. One that only watches is not waited for by other
    ranks.
    """

    @property
    def name(self) -> str:
        """Under which checkpoints keep its state."""
        return type(self).__name__

    def has(self, hook: str) -> bool:
        """Return whether the callback has a method of its own by this name."""
        return getattr(type(self), hook) is not getattr(Callback, hook)

    def before_round(self, simulation: Simulation) -> bool | None:
        """Called before a round; True ends the run without it."""

    def record(self, simulation: Simulation) -> Mapping[str, Any]:
        """Called when the round's steps are done: fields of its `Record`."""
        return {}

    def after_round(self, simulation: Simulation) -> bool | None:
        """Called when the round's record is in the history; True ends the run."""

    def finish(self, simulation: Simulation, run: Run) -> None:
        """Called once at the end."""

    def abandon(self, simulation: Simulation) -> None:
        """Called once in place of `finish` when an error or an interrupt breaks the run off."""

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold of this callback."""
        return {}

    def load(self, held: dict[str, Tensor]) -> None:
        """The inverse of `state`."""


class AfterRound(Callback):
    """A plain function as a callback."""

    def __init__(self, function: PlainCallback) -> None:
        self._function = function

    def after_round(self, simulation: Simulation) -> bool | None:
        # A function may return anything, a logger's result for example: only True means to stop.
        return self._function(simulation) is True


class OnFirstRank(Callback):
    """A user's callback where several ranks share a run: rank 0 calls it, and the run ends on all
    ranks where it ends.

    Parameters
    ----------
    inner : Callback
        What is called.
    ranks : Ranks
        The processes that share the run.
    """

    def __init__(self, inner: Callback, ranks: Ranks) -> None:
        self._inner = inner
        self._ranks = ranks

    @property
    def name(self) -> str:
        return self._inner.name

    def has(self, hook: str) -> bool:
        return self._inner.has(hook) and (self._ranks.first or self._inner.decides)

    def _call(self, hook: str, simulation: Simulation) -> Any:
        """Return what the callback returns on rank 0; raise `StopRun` on all ranks where it ends
        the run.
        """
        found = None
        reason = None
        if self._ranks.first:
            try:
                with self._ranks.local_only(f"the callback {self.name}"):
                    found = getattr(self._inner, hook)(simulation)
                if found and hook != "record":
                    reason = self._inner.reason
            except StopRun as asked:
                reason = str(asked)
        if self._inner.decides:
            reason = self._ranks.broadcast_object(reason)
        if reason is not None:
            raise StopRun(reason)
        return found

    def before_round(self, simulation: Simulation) -> bool | None:
        return bool(self._call("before_round", simulation))

    def after_round(self, simulation: Simulation) -> bool | None:
        return bool(self._call("after_round", simulation))

    def record(self, simulation: Simulation) -> Mapping[str, Any]:
        return self._call("record", simulation) or {}

    def finish(self, simulation: Simulation, run: Run) -> None:
        if self._ranks.first:
            with self._ranks.local_only(f"the callback {self.name}"):
                self._inner.finish(simulation, run)

    def abandon(self, simulation: Simulation) -> None:
        if self._ranks.first:
            self._inner.abandon(simulation)

    def state(self) -> dict[str, Tensor]:
        return self._inner.state() if self._ranks.first else {}

    def load(self, held: dict[str, Tensor]) -> None:
        if self._ranks.first:
            self._inner.load(held)
