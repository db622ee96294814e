"""``fedfw tune``: a small grid search under one budget of gradients for every point of the grid.

The choice is made on samples that the clients lend from their training data; the test data are not
looked at.
"""

import argparse
import csv
import hashlib
import io
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedfw.cli.arguments import adds, argument
from fedfw.cli.flags import FILE, configured, flags_of, keys_given
from fedfw.config import build_algorithm, build_problem, completed, grid_points, load, run_options
from fedfw.config.run_config import algorithm_options
from fedfw.options import parse_number
from fedfw.ranks import Ranks, join_ranks
from fedfw.report.tables import fitted
from fedfw.rounds.files import write_atomically
from fedfw.tuning import HELD_OUT, RUN_AXES, Trial, Tuning, search, usual_grid

_FOUND = ("rounds", "held_out_loss", "held_out_accuracy", "loss")
"""Columns of the table beside those of the choice: fields of a `Trial`."""
_IDENTITY = "configuration"
"""The column that has a digest of what all trials of a table have in common."""


add_arguments = adds(
    FILE,
    *flags_of(without=("tol", "eval_every", "polish")),
    argument(
        "--grid",
        help='what to try, such as "lr=auto:4,auto:8 eta=10,100" (the algorithm\'s own grid)',
    ),
    argument(
        "--budget",
        type=float,
        help="gradients of all its samples a client may compute in a trial (rounds x local steps)",
    ),
    argument(
        "--by",
        choices=("loss", "accuracy"),
        default="loss",
        help="what is compared on the held-out data [%(default)s]",
    ),
    argument(
        "--out", type=Path, help="the file (tuned-ALGORITHM.toml); the table goes beside it as .csv"
    ),
    argument("--resume", action="store_true", help="keep the finished trials of the table"),
)


def execute(options: argparse.Namespace) -> int:
    """Run the grid, print the table, and write the best configuration for ``fedfw run``."""
    with join_ranks() as ranks:
        return _tune(options, ranks)


def _tune(options: argparse.Namespace, ranks: Ranks) -> int:
    """Run the grid on one of the processes that share the trials; the first one prints and
    writes.
    """
    config = configured(options)
    by = options.by
    axes = parse_grid(options.grid) if options.grid else None
    data = load(config)
    base = completed(config, data)
    target = options.out or Path(f"tuned-{str(base.algorithm).replace('+', 'plus')}.toml")
    if target.suffix == ".csv":
        raise ValueError(
            f"--out {target}: the table goes beside it as .csv, expected another ending such as "
            ".toml"
        )
    if by == "accuracy" and data.classes is None:
        raise ValueError(
            f"--by accuracy: {config.dataset} has numbers for targets, expected --by loss"
        )
    problem = build_problem(base, data, HELD_OUT)
    if axes is None:
        default_grid = usual_grid(problem, build_algorithm(base), run_options(base))
        axes = {name.replace("_", "-"): values for name, values in default_grid.items()}
    _validate_axes(keys_given(options), axes, options)
    points = {}  # by the description of its choice: a point's configuration and its trial
    for of_point, trial in grid_points(config, data, axes):
        points[_describe(trial.choice)] = (of_point, trial)
    passes = float(config.rounds * config.local_steps) if options.budget is None else options.budget
    path = target.with_suffix(".csv")
    identity = hashlib.sha256(f"{base.to_toml()} {passes}".encode()).hexdigest()[:12]
    finished: dict[str, Trial] = {}
    if options.resume and ranks.first:
        trials_by_name = {name: trial for name, (_, trial) in points.items()}
        finished = _read_table(path, identity, trials_by_name)
    # The first process has the table, and decides for all which trials are run.
    missing = ranks.broadcast_object([name for name in points if name not in finished])

    def show(trial: Trial) -> None:
        """Print a finished trial, and write the table of all that are finished."""
        finished[_describe(trial.choice)] = trial
        _write_table(path, identity, [finished[name] for name in points if name in finished])
        count = f"{len(finished)}/{len(points)}"
        print(f"{count}  {_describe(trial.choice)}  {_outcome(trial)}", file=sys.stderr)

    trials = [points[name][1] for name in missing]
    try:
        search(problem, trials, passes, show if ranks.first else None, ranks)
    except KeyboardInterrupt:
        print(
            f"\nfedfw tune: interrupted; the {len(finished)} of {len(points)} trials that were "
            f"finished are in {path}; the same command with --resume runs the others",
            file=sys.stderr,
        )
        return 130
    except OSError as error:  # a disk that is full, for example
        raise OSError(f"{error}. Mend that; the same command with --resume goes on") from None
    if not ranks.first:
        return 0
    best = Tuning([finished[name] for name in points], by).best
    _print_table(finished.values(), by)
    if not math.isfinite(best.rank(by)):
        raise ValueError(
            "no point of the grid gave a finite result: expected a grid with smaller steps"
        )
    chosen, _ = points[_describe(best.choice)]
    write_atomically(target, replace(chosen, rounds=best.rounds).to_toml().encode())
    print(
        f"\nbest: {_describe(best.choice)} ({by} on {HELD_OUT:.0%} of the training data, lent by "
        "the clients)"
    )
    print(f"run it with:  fedfw run {target}")
    return 0


def _validate_axes(
    given: set[str], axes: Mapping[str, Sequence[Any]], options: argparse.Namespace
) -> None:
    """Refuse options that are given and that the grid varies as well, and rounds beside a budget,
    which decides how many rounds a trial has.
    """
    if options.budget is not None and "rounds" in given:
        raise ValueError(
            f"rounds with --budget {options.budget:g}, which says how many rounds a trial has: "
            "leave one of them out"
        )
    for key in [axis for axis in axes if axis in given]:
        if options.grid:
            raise ValueError(f"{key} is given and is in the grid, too: leave one of them out")
        raise ValueError(
            f"{key} is given, and the algorithm's own grid tries other values: expected a --grid "
            f"without {key}, or no {key}"
        )


def parse_grid(text: str) -> dict[str, Sequence[str]]:
    """Return the values of each key of a text such as ``lr=auto:4,auto:8 eta=10,100``; they are
    checked where they enter the configuration.

    Values with a comma in them are divided by bars: ``constraint=l1:10|ksparse:k=79,r=1``.
    """
    # The rest (data, clients, model ...) is the problem, which all points share.
    may_vary = [
        name.replace("_", "-")
        for name in (*algorithm_options(), "constraint", "per_parameter", *RUN_AXES)
    ]
    axes: dict[str, Sequence[str]] = {}
    for part in text.split():
        key, equals, text_values = part.partition("=")
        key = key.replace("_", "-")
        values = text_values.split("|" if "|" in text_values else ",")
        if not equals or not all(values) or key in axes:
            raise ValueError(
                f"grid {part!r}, expected KEY=VALUE,VALUE,... such as lr=auto:4,auto:8, each key "
                "once"
            )
        if key not in may_vary:
            raise ValueError(f"grid: {key} cannot vary, expected one of {', '.join(may_vary)}")
        axes[key] = values
    if not axes:
        raise ValueError("an empty grid, expected KEY=VALUE,VALUE,...")
    return axes


def _write_table(path: Path, identity: str, finished: Sequence[Trial]) -> None:
    """Write the finished trials as CSV, in the order of the grid."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*finished[0].choice, *_FOUND, _IDENTITY])
    for trial in finished:
        results = [getattr(trial, name) for name in _FOUND]
        writer.writerow([*trial.choice.values(), *results, identity])
    write_atomically(path, text.getvalue().encode())


def _read_table(path: Path, identity: str, points: Mapping[str, Trial]) -> dict[str, Trial]:
    """Return the finished trials of a file by their choices; refuses those of another
    configuration or grid.
    """
    if not path.exists():
        raise ValueError(f"--resume: there is no {path} with finished trials")
    finished = {}
    for row in csv.DictReader(path.read_text().splitlines()):
        # All columns but the results are the point of the grid.
        choice = {key: value for key, value in row.items() if key not in (*_FOUND, _IDENTITY)}
        name = _describe(choice)
        if name not in points or row.get(_IDENTITY) != identity:
            raise ValueError(
                f"--resume: {path} holds trials of another grid or configuration than this "
                "command's"
            )
        values: dict[str, Any] = {}
        for key in _FOUND:
            values[key] = parse_number(row[key]) if row[key] else None
        options = replace(points[name].options, rounds=values.pop("rounds"))
        finished[name] = replace(points[name], options=options, **values)
    return finished


def _print_table(trials: Iterable[Trial], by: str) -> None:
    """Print the trials, the best first."""
    rows = [
        (_describe(trial.choice), str(trial.rounds), _outcome(trial))
        for trial in sorted(trials, key=lambda trial: trial.rank(by))
    ]
    print(fitted([("choice", "rounds", "result"), *rows]))


def _describe(choice: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in choice.items()) or "the defaults"


def _outcome(trial: Trial) -> str:
    """Return a trial's results in a few words."""
    if not math.isfinite(trial.held_out_loss):
        return "blew up"
    accuracy = (
        "" if trial.held_out_accuracy is None else f", accuracy {trial.held_out_accuracy:.4f}"
    )
    return f"held-out loss {trial.held_out_loss:.4f}{accuracy}, training loss {trial.loss:.4f}"
