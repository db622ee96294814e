"""``fedfw tune``: a small grid search under one budget of gradient evaluations for every point of the grid.

The choice is made on samples that the clients lend from their training data; the test data are not looked at.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedfw.algorithms import ALGORITHMS
from fedfw.command.build import build_algorithm, build_problem, load, resolved
from fedfw.command.config import RunConfig, merge
from fedfw.command.run import configure
from fedfw.errors import NonFiniteError
from fedfw.problems import Problem
from fedfw.report.tables import aligned
from fedfw.simulation import Options, simulate
from fedfw.simulation.files import write_atomically

HELD_OUT = 0.2
_MULTIPLES = ("auto:0.01", "auto:0.03", "auto:0.1", "auto:0.3", "auto:1", "auto:3")
_STEPS = tuple(f"auto:{multiple}" for multiple in (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48))
GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    "fedfw": {"penalty": _MULTIPLES, "momentum": (0.0, 0.9)},
    "fedfw+": {"penalty": _MULTIPLES, "momentum": (0.0, 0.9)},
    "fedfw-sto": {"penalty": (*_MULTIPLES, "auto:10")},
    "fedfw-anchored": {"anchor-every": (5, 10, 20), "momentum": (0.0, 0.9), "penalty": (0.0, "auto:0.1")},
    "frank-wolfe": {"momentum": (0.0, 0.5, 0.8, 0.9)},
    "naive": {"schedule": ("convex", "constant:0.01", "constant:0.1")},
    "fedavg": {"lr": _STEPS},
    "feddr": {"lr": ("auto:8", "auto:16", "auto:24"), "eta": (3.0, 10.0), "alpha": (1.0, 1.9)},
    "fedadmm": {"lr": ("auto:8", "auto:12", "auto:16", "auto:24"), "eta": (1.0, 3.0, 10.0)},
    "fedda": {"lr": _STEPS},
}
"""What is searched where no grid is given: at most twelve points for every algorithm."""


@dataclass(frozen=True)
class Trial:
    """One point of the grid: what was chosen, the rounds the budget allowed, and how it went on the lent samples."""

    choice: dict[str, Any]
    rounds: int
    held_out_loss: float
    held_out_accuracy: float | None
    loss: float

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
    if config.algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {config.algorithm!r}, expected one of {', '.join(ALGORITHMS)}")
    axes = parse_grid(grid) if grid else GRIDS[config.algorithm]
    data = load(config)
    base = resolved(config, data, algorithm_was_given=True)
    problem = build_problem(base, data, HELD_OUT)
    if by == "accuracy" and data.classes is None:
        raise ValueError(f"--by accuracy: {base.dataset} has numbers for targets, expected --by loss")
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    # Open defaults are filled in for each point anew: they may depend on what the grid chooses.
    configs = [resolved(merge(config, point, "grid"), data, algorithm_was_given=True) for point in points]
    passes = budget if budget is not None else float(base.rounds * base.local_steps)
    trials = []
    for number, (point, chosen) in enumerate(zip(points, configs, strict=True), 1):
        trials.append(run_trial(problem, chosen, point, passes))
        print(f"{number}/{len(points)}  {_describe(point)}  {_outcome(trials[-1])}", file=sys.stderr, flush=True)
    best = min(trials, key=lambda trial: trial.rank(by))
    if not math.isfinite(best.rank(by)):
        raise ValueError("no point of the grid gave a finite result: expected a grid with smaller steps")
    target = out or Path(f"tuned-{base.algorithm.replace('+', 'plus')}.toml")
    winner = replace(configs[trials.index(best)], rounds=best.rounds, out=None)
    write_atomically(target, winner.to_toml().encode())
    write_atomically(target.with_suffix(".csv"), _as_csv(trials).encode())
    print(_as_table(trials, by))
    print(f"\nbest: {_describe(best.choice)} ({by} on {HELD_OUT:.0%} of the training data, lent by the clients)")
    for key, value in best.choice.items():
        if len(axes[key]) > 2 and value in (axes[key][0], axes[key][-1]):
            print(f"{key} = {value} is at the edge of its grid: a wider one may be better")
    print(f"run it with:  fedfw run {target}")
    return 0


def run_trial(problem: Problem, config: RunConfig, choice: dict[str, Any], passes: float) -> Trial:
    """As many rounds as the budget allows: a pass is one gradient of all of a client's samples."""
    sizes = problem.losses.sizes
    share = 1.0
    if config.batch_size is not None and sizes is not None:
        share = config.batch_size / float(sizes.double().mean())
    rounds = max(1, round(passes / (config.local_steps * share)))
    names = {f.name for f in fields(Options)} - {"rounds", "eval_every", "tol", "relax"}
    options = {name: getattr(config, name) for name in names}
    try:
        run = simulate(problem, build_algorithm(config), rounds=rounds, eval_every=rounds, **options)
    except NonFiniteError:
        return Trial(choice, rounds, math.inf, None, math.inf)
    last = run.history[-1]
    assert last.test_loss is not None
    assert last.loss is not None
    return Trial(choice, rounds, last.test_loss, last.accuracy, last.loss)


def parse_grid(text: str) -> dict[str, Sequence[Any]]:
    """``lr=auto:4,auto:8 eta=10,100`` -> the values of each key, checked where they enter the configuration."""
    axes: dict[str, Sequence[Any]] = {}
    for part in text.split():
        key, equals, values = part.partition("=")
        if not equals or not all(values.split(",")) or key in axes:
            raise ValueError(f"grid {part!r}, expected KEY=VALUE,VALUE,... such as lr=auto:4,auto:8, each key once")
        axes[key.replace("_", "-")] = values.split(",")
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
