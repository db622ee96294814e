"""``fedfw tune``: a small grid search under one budget of gradient evaluations for every point of the grid.

The choice is made on samples that the clients lend from their training data; the test data are not looked at.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedfw.command.build import build_algorithm, build_problem, load, options_of
from fedfw.command.config import RunConfig, merge
from fedfw.command.defaults import ALGORITHM_OPTIONS, resolved
from fedfw.command.run import configure
from fedfw.data import Data
from fedfw.errors import NonFiniteError
from fedfw.problems import Problem
from fedfw.report.tables import aligned
from fedfw.sets import parse_set
from fedfw.simulation import Simulation
from fedfw.simulation.files import write_atomically

HELD_OUT = 0.2
MAY_VARY = (*ALGORITHM_OPTIONS, "constraint", "per_parameter", "local_steps", "batch_size", "participation")
"""What a grid may hold; the rest (data, clients, model ...) is the problem, which all points share."""

_PENALTIES = tuple(f"auto:{multiple}" for multiple in (0.01, 0.03, 0.1, 0.3, 1, 3))
_PENALTIES_ON_POLYTOPES = tuple(f"auto:{multiple}" for multiple in (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1))
_STEPS = tuple(f"auto:{multiple}" for multiple in (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48))
_STEPS_OF_NETWORKS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    "fedfw": {"penalty": _PENALTIES, "momentum": (0.0, 0.9)},
    "fedfw+": {"penalty": _PENALTIES, "momentum": (0.0, 0.9)},
    "fedfw-sto": {"penalty": (*_PENALTIES, "auto:10")},
    "fedfw-anchored": {"anchor-every": (5, 10, 20), "momentum": (0.0, 0.9), "penalty": (0.0, "auto:0.1")},
    "frank-wolfe": {"momentum": (0.0, 0.5, 0.8, 0.9)},
    "naive": {"schedule": ("convex", "constant:0.01", "constant:0.1")},
    "fedavg": {"lr": _STEPS},
    "feddr": {"lr": ("auto:4", "auto:8", "auto:16"), "eta": (3.0, 10.0), "alpha": (1.0, 1.9)},
    "fedadmm": {"lr": ("auto:2", "auto:4", "auto:8", "auto:16"), "eta": (1.0, 3.0, 10.0)},
    "fedda": {"lr": _STEPS},
}
"""What is searched where no grid is given: at most twelve points for every algorithm."""


@dataclass(frozen=True)
class Trial:
    """One point of the grid: what was chosen, the rounds the budget allowed, and how it went on the lent samples."""

    choice: dict[str, Any]
    config: RunConfig
    held_out_loss: float = math.inf
    held_out_accuracy: float | None = None
    loss: float = math.inf

    @property
    def rounds(self) -> int:
        return self.config.rounds

    def rank(self, by: str) -> float:
        """The smaller, the better; infinite for runs that blew up."""
        if by == "accuracy":
            return math.inf if self.held_out_accuracy is None else -self.held_out_accuracy
        return self.held_out_loss if math.isfinite(self.held_out_loss) else math.inf


def tune(
    file: str | None, flags: dict[str, Any], grid: str | None, budget: float | None, by: str, out: Path | None
) -> int:
    """Run the grid, print the table, and write the best configuration for ``fedfw run``."""
    config, _ = configure(file, flags)
    target = out or Path(f"tuned-{config.algorithm.replace('+', 'plus')}.toml")
    if target.suffix == ".csv":
        raise ValueError(f"--out {target}: the table goes beside it as .csv, expected another ending such as .toml")
    data = load(config)
    problem = build_problem(resolved(config, data, algorithm_was_given=True), data, HELD_OUT)
    if by == "accuracy" and data.classes is None:
        raise ValueError(f"--by accuracy: {config.dataset} has numbers for targets, expected --by loss")
    axes = parse_grid(grid) if grid else usual_grid(config, data, problem)
    trials = search(config, data, problem, axes, budget, lambda line: print(line, file=sys.stderr, flush=True))
    best = min(trials, key=lambda trial: trial.rank(by))
    if not math.isfinite(best.rank(by)):
        raise ValueError("no point of the grid gave a finite result: expected a grid with smaller steps")
    write_atomically(target, replace(best.config, out=None).to_toml().encode())
    write_atomically(target.with_suffix(".csv"), _as_csv(trials).encode())
    print(_as_table(trials, by))
    print(f"\nbest: {_describe(best.choice)} ({by} on {HELD_OUT:.0%} of the training data, lent by the clients)")
    for key, value in best.choice.items():
        if len(axes[key]) > 2 and value in (axes[key][0], axes[key][-1]):
            print(f"{key} = {value} is at the edge of its grid: a wider one may be better")
    print(f"run it with:  fedfw run {target}")
    return 0


def usual_grid(config: RunConfig, data: Data, problem: Problem) -> dict[str, Sequence[Any]]:
    """The algorithm's grid, with penalties for the kind of set and step sizes for the kind of model."""
    axes = dict(GRIDS[config.algorithm])
    base = resolved(config, data, algorithm_was_given=True)
    if axes.get("penalty") == _PENALTIES and parse_set(base.constraint or "").is_polytope:
        axes["penalty"] = _PENALTIES_ON_POLYTOPES
    if "lr" in axes and problem.smoothness() is None:
        axes["lr"] = _STEPS_OF_NETWORKS[: max(2, len(axes["lr"]))]
    return axes


def search(
    config: RunConfig,
    data: Data,
    problem: Problem,
    axes: dict[str, Sequence[Any]],
    budget: float | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Trial]:
    """Run every point of the grid on a problem that tests on lent samples, each with the same budget of gradients.

    The budget counts gradients of all of a client's samples; None for what the configuration's own rounds cost with
    one full gradient a step. ``say`` is told how each point went.
    """
    passes = float(config.rounds * config.local_steps) if budget is None else budget
    if not (math.isfinite(passes) and passes > 0):
        raise ValueError(f"budget={budget}, expected a positive number of gradients")
    trials = []
    for values in product(*axes.values()):
        choice = dict(zip(axes, values, strict=True))
        # Open defaults are filled in for each point anew: they may depend on what the grid chooses.
        chosen = resolved(merge(config, choice, "grid"), data, algorithm_was_given=True)
        trials.append(Trial(choice, replace(chosen, rounds=affordable_rounds(problem, chosen, passes))))
    for number, trial in enumerate(trials):
        trials[number] = _run(problem, trial)
        if say is not None:
            say(f"{number + 1}/{len(trials)}  {_describe(trial.choice)}  {_outcome(trials[number])}")
    return trials


def affordable_rounds(problem: Problem, config: RunConfig, passes: float) -> int:
    """How many whole rounds the budget pays for."""
    algorithm, sizes = build_algorithm(config), problem.losses.sizes
    share = 1.0
    if config.batch_size is not None and sizes is not None:
        share = config.batch_size / float(sizes.double().mean())
    rounds = math.floor(passes / algorithm.passes(config.local_steps, share) + 1e-9)
    if rounds < 1:
        raise ValueError(f"budget={passes:g}: a round of {config.algorithm} costs more, expected a larger budget")
    return rounds


def _run(problem: Problem, trial: Trial) -> Trial:
    options = replace(options_of(trial.config), eval_every=trial.rounds, tol=None)
    try:
        last = Simulation(problem, build_algorithm(trial.config), options).run().history[-1]
    except NonFiniteError:
        return trial
    assert last.test_loss is not None
    loss = math.nan if last.loss is None else last.loss  # a private run tells none
    return replace(trial, held_out_loss=last.test_loss, held_out_accuracy=last.accuracy, loss=loss)


def parse_grid(text: str) -> dict[str, Sequence[Any]]:
    """``lr=auto:4,auto:8 eta=10,100`` -> the values of each key, checked where they enter the configuration.

    Values with a comma in them are divided by bars: ``constraint=l1:10|ksparse:k=79,r=1``.
    """
    axes: dict[str, Sequence[Any]] = {}
    for part in text.split():
        key, equals, text_values = part.partition("=")
        key, values = key.replace("_", "-"), text_values.split("|" if "|" in text_values else ",")
        if not equals or not all(values) or key in axes:
            raise ValueError(f"grid {part!r}, expected KEY=VALUE,VALUE,... such as lr=auto:4,auto:8, each key once")
        if key.replace("-", "_") not in MAY_VARY:
            known = ", ".join(name.replace("_", "-") for name in MAY_VARY)
            raise ValueError(f"grid: {key} cannot vary, expected one of {known}")
        axes[key] = values
    if not axes:
        raise ValueError("an empty grid, expected KEY=VALUE,VALUE,...")
    return axes


def _describe(choice: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in choice.items())


def _outcome(trial: Trial) -> str:
    if not math.isfinite(trial.held_out_loss):
        return "blew up"
    accuracy = "" if trial.held_out_accuracy is None else f", accuracy {trial.held_out_accuracy:.4f}"
    return f"held-out loss {trial.held_out_loss:.4f}{accuracy}, training loss {trial.loss:.4f}"


def _as_table(trials: Sequence[Trial], by: str) -> str:
    rows = [(_describe(t.choice), str(t.rounds), _outcome(t)) for t in sorted(trials, key=lambda t: t.rank(by))]
    return aligned([("choice", "rounds", "result"), *rows])


def _as_csv(trials: Sequence[Trial]) -> str:
    text = io.StringIO()
    columns = [*trials[0].choice, "rounds", "held_out_loss", "held_out_accuracy", "loss"]
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    for trial in trials:
        writer.writerow(trial.choice | {name: getattr(trial, name) for name in columns[len(trial.choice) :]})
    return text.getvalue()
