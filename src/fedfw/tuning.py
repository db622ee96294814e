"""A small grid search under one budget of gradient evaluations for every point of the grid.

The choice is made on samples that the clients lend from their training data; test data are never
looked at.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

from fedfw.algorithms.contract import Algorithm
from fedfw.algorithms.optin import GathersGradients, Tunable
from fedfw.algorithms.setting import Setting
from fedfw.errors import InfeasibleError, NonFiniteError
from fedfw.options import declare_keywords, options_of, validate_keywords
from fedfw.problems.problem import Problem
from fedfw.ranks import ALONE, Ranks
from fedfw.report.bars import shown
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Participation
from fedfw.rounds.setup import describe_setting, feasible_start
from fedfw.simulation.simulator import Simulation
from fedfw.simulation.threads import fitting_threads

HELD_OUT = 0.2
"""The share of their samples that clients lend."""
RUN_AXES = ("local_steps", "batch_size", "participation")
"""Options of a run, beside the algorithm's own, that a grid may hold."""


@dataclass(frozen=True)
class Trial:
    """One point of the grid and how it went.

    Parameters
    ----------
    choice : dict
        What was chosen, by the names of the options.
    algorithm, options : Algorithm, Options
        What was run.
    held_out_loss, held_out_accuracy, loss : float
        On the lent samples, and on the training data; infinite where the run blew up.

    Examples
    --------
    >>> import fedfw
    >>> trial = fedfw.Trial(
    ...     {"lr": 0.1}, fedfw.FedAvg(fedfw.L2Ball(1.0), lr=0.1), Options(), held_out_loss=0.7
    ... )
    >>> trial.rank("loss"), trial.rounds
    (0.7, 100)
    """

    choice: dict[str, Any]
    algorithm: Algorithm
    options: Options
    held_out_loss: float = math.inf
    held_out_accuracy: float | None = None
    loss: float = math.inf

    @property
    def rounds(self) -> int:
        """Return how many rounds the budget paid for."""
        return self.options.rounds

    def rank(self, by: str) -> float:
        """Return a number that is smaller for better trials; infinite for runs that blew up."""
        if by == "accuracy":
            return math.inf if self.held_out_accuracy is None else -self.held_out_accuracy
        return self.held_out_loss if math.isfinite(self.held_out_loss) else math.inf


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`.

    Parameters
    ----------
    trials : list of Trial
        In the order of the grid.
    by : str
        What was compared.

    Examples
    --------
    >>> import fedfw
    >>> algorithm = fedfw.FedAvg(fedfw.L2Ball(1.0))
    >>> trials = [
    ...     fedfw.Trial({"lr": lr}, algorithm, Options(), held_out_loss=lr) for lr in (0.3, 0.1)
    ... ]
    >>> fedfw.Tuning(trials, by="loss").best.choice
    {'lr': 0.1}
    """

    trials: list[Trial] = field(repr=False)
    by: str

    @property
    def best(self) -> Trial:
        """Return the trial with the least loss, or the highest accuracy, on the held-out
        samples.
        """
        return min(self.trials, key=lambda trial: trial.rank(self.by))


NOT_TUNED = {"tol", "eval_every", "polish"}
"""Options of a run that trials do not have."""


@declare_keywords(Options)
def tune(
    problem: Problem,
    algorithm: Algorithm,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    budget: float | None = None,
    by: Literal["loss", "accuracy"] = "loss",
    progress: bool | Callable[[Trial], Any] = False,
    **options: Any,
) -> Tuning:
    """Try every point of a grid, each with the same budget of gradients.

    Parameters
    ----------
    problem : Problem
        Clients lend a fifth of their samples, on which trials are compared. A problem of
        ``load_problem(..., held_out=share)`` has lent some already.
    algorithm : Algorithm
        Whose options are tuned.
    grid : mapping, optional
        Values to try, by the name of an option of the algorithm, or ``local_steps``,
        ``batch_size``, ``participation``; by default the algorithm's own grid.
    budget : float, optional
        Gradients of all of its samples that a client may compute; by default what the rounds cost
        with one full gradient a step.
    by : "loss" or "accuracy"
        What is compared.
    progress : bool or callable
        True for a bar; a function is called with each trial when it is done.
    {options}

    Returns
    -------
    Tuning

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.load_problem("digits", clients=5, partition="iid")
    >>> found = fedfw.tune(
    ...     problem, fedfw.FedAvg(fedfw.L2Ball(10.0)), grid={"lr": [0.01, 0.3]}, rounds=10
    ... )
    >>> found.best.choice
    {'lr': 0.3}
    """
    validate_keywords("tune", options, Options, own=("grid", "budget", "by", "progress"))
    without_effect = sorted(options.keys() & NOT_TUNED)
    if without_effect:
        raise ValueError(
            f"tune: {', '.join(without_effect)} would change nothing, because every trial takes its "
            "whole budget and is evaluated at its end: leave it out"
        )
    if budget is not None and "rounds" in options:
        raise ValueError(
            f"rounds={options['rounds']} with budget={budget:g}, which says how many rounds a "
            "trial has: leave one out"
        )
    if not problem.tests_lent:
        problem = problem.with_held_out(HELD_OUT)
    options.setdefault("batch_size", problem.batch_size)
    run = Options(**options)
    axes = dict(usual_grid(problem, algorithm, run) if grid is None else grid)
    for name in axes:
        if name not in options_of(type(algorithm)) and name not in RUN_AXES:
            option_names = ", ".join([*options_of(type(algorithm)), *RUN_AXES])
            raise ValueError(f"grid: {name!r} cannot vary here, expected one of {option_names}")
    points = []
    for choice in points_of(axes):
        of_run = {name: value for name, value in choice.items() if name in RUN_AXES}
        of_algorithm = {name: value for name, value in choice.items() if name not in RUN_AXES}
        points.append(Trial(choice, replace(algorithm, **of_algorithm), replace(run, **of_run)))
    passes = float(run.rounds * run.local_steps) if budget is None else budget
    done: list[Trial] = []
    with shown(progress, len(points), "trial", _described) as show:

        def note(trial: Trial) -> None:
            done.append(trial)
            show(len(done), trial)

        return Tuning(search(problem, points, passes, note), by)


def _described(trial: Trial) -> str:
    choice = " ".join(f"{name}={value}" for name, value in trial.choice.items())
    return f"{choice}: held-out loss {trial.held_out_loss:.4f}"


def points_of(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of the values."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def usual_grid(
    problem: Problem, algorithm: Algorithm, options: Options
) -> dict[str, Sequence[Any]]:
    """Return the algorithm's own grid for this problem; nothing varies where it has none."""
    if not isinstance(algorithm, Tunable):
        return {}
    return dict(algorithm.grid(setting_of(problem, algorithm, options)))


def setting_of(problem: Problem, algorithm: Algorithm, options: Options) -> Setting:
    """Return what is known of a run before it begins."""
    constraint = problem.bind(algorithm.constraint)
    p = Participation(options.participation, problem.n, options.seed).p
    return describe_setting(
        problem, constraint, feasible_start(constraint, problem.start), p, options
    )


def search(
    problem: Problem,
    points: Sequence[Trial],
    passes: float,
    progress: Callable[[Trial], None] | None = None,
    ranks: Ranks = ALONE,
) -> list[Trial]:
    """Return the trials with their outcomes, each run for as many rounds as ``passes`` gradients of
    all samples pay for; ranks divide the trials among them.
    """
    if not (math.isfinite(passes) and passes > 0):
        raise ValueError(f"budget={passes}, expected a positive number of gradients")
    trials = []
    for point in points:
        rounds = affordable_rounds(problem, point, passes)
        trials.append(replace(point, options=replace(point.options, rounds=rounds)))

    def outcome(i: int) -> dict[str, float | None]:
        """Return the measured fields of trial i."""
        return _run(problem, trials[i])

    # lambda: every rank can run every trial.
    for i, measured in ranks.queue().results(len(trials), lambda i: True, outcome):
        trials[i] = replace(trials[i], **measured)
        if progress is not None:
            progress(trials[i])
    return trials


def affordable_rounds(problem: Problem, point: Trial, passes: float) -> int:
    """Return how many whole rounds a budget of ``passes`` gradients of all samples pays for: a
    local step costs the share of the samples in its batch, and an exchange of gradients a whole
    one.
    """
    sizes = problem.losses.sizes
    batch = point.options.batch_size
    share = 1.0 if batch is None or sizes is None else batch / float(sizes.double().mean())
    each = point.options.local_steps * share
    for exchange in point.algorithm.all_exchanges:
        if isinstance(exchange, GathersGradients):
            each += 1 / exchange.rounds_between
    rounds = math.floor(passes / each + 1e-9)  # 3 / 0.1 rounds below 30
    if rounds < 1:
        raise ValueError(
            f"budget={passes:g}: a round of {point.algorithm.name} costs more, expected a larger "
            "budget"
        )
    return rounds


def _run(problem: Problem, point: Trial) -> dict[str, float | None]:
    """Return the measured fields of a trial by name; none where its steps diverge."""
    options = replace(point.options, eval_every=point.rounds, tol=None, polish=None)
    try:
        with fitting_threads(problem):
            last = Simulation(problem, point.algorithm, options).run().history[-1]
    except (NonFiniteError, InfeasibleError):  # the step size is too large
        return {}
    if last.test_loss is None:
        raise ValueError(
            "tune compares losses on the problem's test data, and this problem has none"
        )
    return {
        "held_out_loss": last.test_loss,
        "held_out_accuracy": last.accuracy,
        "loss": math.nan if last.loss is None else last.loss,  # a private run keeps it to itself
    }
