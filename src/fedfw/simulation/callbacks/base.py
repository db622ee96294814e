"""The base class of callbacks: an object whose methods are called around the rounds, or a plain
function after each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from fedfw.simulation.result import Run
    from fedfw.simulation.simulator import Simulation

PlainCallback = Callable[["Simulation"], Any]
"""A function that is called after every round; it ends the run by returning True or raising
`StopRun`.
"""


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
    on_all_ranks: bool = False
    """True if all ranks of a shared run call it, in which it may use exchanges between them."""

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
        """Take over what `state` returned."""


class AfterRound(Callback):
    """A plain function as a callback."""

    def __init__(self, function: PlainCallback) -> None:
        self._function = function

    def after_round(self, simulation: Simulation) -> bool | None:
        # A function may return anything, a logger's result for example: only True means to stop.
        return self._function(simulation) is True
