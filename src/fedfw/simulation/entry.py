"""The entry point: one call that runs a federated algorithm with all clients on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedfw.algorithms.contract import Algorithm
from fedfw.options import declare_keywords, validate_keywords
from fedfw.problems.problem import Problem
from fedfw.report.bars import validate_progress
from fedfw.rounds.folders import RunFolder
from fedfw.rounds.options import Options
from fedfw.rounds.records import Record
from fedfw.simulation.callbacks.base import AfterRound, Callback
from fedfw.simulation.callbacks.hooks import Callbacks, as_callbacks
from fedfw.simulation.callbacks.progress import Progress
from fedfw.simulation.result import Run as Result
from fedfw.simulation.simulator import Simulation
from fedfw.simulation.threads import fitting_threads


@declare_keywords(Options)
def simulate(
    problem: Problem,
    algorithm: Algorithm,
    *,
    callbacks: Callbacks = (),
    progress: bool | Callable[[Record], Any] = False,
    out: str | Path | None = None,
    resume: bool = False,
    **options: Any,
) -> Result:
    """Run a federated algorithm with all clients on this machine.

    Parameters
    ----------
    problem : Problem
        Model, loss and the clients' data.
    algorithm : Algorithm
        With its set, such as ``FedFW(L1Ball(10.0))``.
    callbacks : callable, Callback, or a sequence of them
        A function is called after every round with the `Simulation`; it ends the run by returning
        True or raising `StopRun`. A `fedfw.simulation.Callback` has more to say.
    progress : bool or callable
        True shows how the run gets on; a function is called with the `Record` of every round.
    out : path, optional
        A folder for history, model, plots and checkpoints; it must not hold a run yet, unless
        ``resume``.
    resume : bool
        Whether to continue from the last good checkpoint in ``out``. The run must be the same; only
        ``rounds`` may be more, where the rounds that are done would have been the same ones in a
        run of so many.
    {options}

    Returns
    -------
    Run
        The model, the history and what was proven.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.load_problem("digits", clients=10, partition="labels:3")
    >>> algorithm = fedfw.FedFWPlus(fedfw.L2Ball(10.0), momentum=0.9)
    >>> run = fedfw.simulate(problem, algorithm, rounds=50, participation=0.8, seed=1)
    >>> len(run.history), run.history[-1].accuracy > 0.8
    (50, True)
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(
            f"algorithm={algorithm!r}, expected an algorithm with its set, such as "
            "FedFW(L1Ball(10.0))"
        )
    validate_keywords("simulate", options, Options, own=("callbacks", "progress", "out", "resume"))
    validate_progress(progress)
    options.setdefault("batch_size", problem.batch_size)
    if resume and out is None:
        raise ValueError("resume=True needs the folder to go on from: give it as out")
    folder = None if out is None or not problem.ranks.first else RunFolder(Path(out), resume)
    watched = [*as_callbacks(callbacks), *_watchers(progress)]
    with fitting_threads(problem):
        return Simulation(
            problem, algorithm, Options(**options), folder=folder, callbacks=watched
        ).run()


def _watchers(progress: bool | Callable[[Record], Any]) -> list[Callback]:
    """Return the callbacks for ``progress``: a bar, a call of the given function with each record,
    or none.
    """
    if not callable(progress):
        return [Progress()] if progress else []
    show_record = progress

    def watch(simulation: Simulation) -> None:
        """Call the user's function with the record of the round that ended."""
        show_record(simulation.history[-1])

    return [AfterRound(watch)]
