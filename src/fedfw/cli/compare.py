"""``fedfw compare``: several runs in one table and one picture."""

import argparse
from pathlib import Path

from fedfw.cli.arguments import adds, argument
from fedfw.cli.closing import CONFIG
from fedfw.cli.residual import keep_optimum, kept_optimum, quick_optimum
from fedfw.config import RunConfig, build_problem, constraint_of, load, read_config
from fedfw.data import MissingDataError
from fedfw.deployment.records import DeployedRecord
from fedfw.models import MODELS
from fedfw.options import options_of
from fedfw.presets import ProblemOptions
from fedfw.report.plots import plot_runs, save_figure
from fedfw.report.tables import fitted, human_bytes
from fedfw.rounds.folders import HISTORY
from fedfw.rounds.records import History, read_history
from fedfw.solving import Optimum

_HEADER = (
    *(
        "run",
        "data",
        "set",
        "algorithm",
        "rounds",
        "loss",
        "residual",
        "accuracy",
        "gap",
        "optimum >=",
    ),
    *("up", "down", "dense", "s in rounds"),
)
_PROBLEM = [name for name in options_of(ProblemOptions) if name != "data_dir"]
"""The options that say whose losses are added up, beside the seed of the split."""


add_arguments = adds(
    argument("folders", type=Path, nargs="+", metavar="RUN", help="run folders"),
    argument("--out", type=Path, default=Path("compare.png"), help="the picture [%(default)s]"),
    argument(
        "--mixed", action="store_true", help="show runs of different problems beside each other"
    ),
)


def execute(options: argparse.Namespace) -> int:
    """Print a table and save overlaid plots."""
    runs: dict[str, History] = {}
    configs: dict[str, RunConfig | None] = {}
    rows = []
    for folder in options.folders:
        name = folder.name if folder.name not in runs else str(folder)
        if not (folder / HISTORY).exists():
            raise ValueError(f"{folder} is no run folder: it has no {HISTORY}")
        runs[name] = read_history(
            folder / HISTORY, DeployedRecord
        )  # a simulation's records have some of its fields
        configs[name] = read_config(folder / CONFIG) if (folder / CONFIG).exists() else None
    notes = _refuse_mixed(configs, allowed=options.mixed)
    optima = {}
    for folder, (name, history) in zip(options.folders, runs.items(), strict=True):
        optimum = _optimum(folder, history, configs[name])
        if optimum is not None:
            optima[name] = optimum.residual
        rows.append(_row(name, history, configs[name], optimum))
    print(fitted([_HEADER, *rows]))
    for note in notes:
        print(f"\n{note}")
    save_figure(plot_runs(runs, optima), options.out)
    print(f"\nplots: {options.out}")
    return 0


def _refuse_mixed(configs: dict[str, RunConfig | None], *, allowed: bool) -> list[str]:
    """Refuse runs of different problems unless they are wanted; returns what should be said of the
    table.
    """
    known = {name: config for name, config in configs.items() if config is not None}
    notes = [
        f"{name} has no {CONFIG}: it is not known whether it is of the same problem as the others"
        for name in configs
        if name not in known and len(configs) > 1
    ]
    if not known:
        return notes
    first, reference = next(iter(known.items()))
    differences = [
        f"{option.replace('_', '-')} is {getattr(reference, option)} in {first} and "
        f"{getattr(config, option)} in {name}"
        for name, config in known.items()
        for option in _PROBLEM
        if getattr(reference, option) != getattr(config, option)
    ]
    if differences and not allowed:
        raise ValueError(
            f"these runs are of different problems, so their losses cannot be compared: {differences[0]}; "
            "--mixed shows them beside each other all the same"
        )
    notes += [
        f"Different problems: {said}, so their losses cannot be compared." for said in differences
    ]
    if len({config.seed for config in known.values()}) > 1:
        notes.append("The seeds differ, so the same clients may hold other samples.")
    return notes


def _optimum(folder: Path, history: History, config: RunConfig | None) -> Optimum | None:
    """The optimum of this run's problem and set, if the run has losses and it is known or quickly
    found.
    """
    if history.last("loss") is None:
        return None
    optimum = kept_optimum(folder)
    kind = None if config is None else MODELS.get(config.model or "")
    if optimum is None and config is not None and kind is not None and kind.convex:
        try:
            problem = build_problem(config, load(config))
        except (MissingDataError, OSError):
            return None  # the run was on a machine that had the data
        optimum = quick_optimum(problem, constraint_of(config))
        if optimum is not None:
            keep_optimum(optimum, folder)
    return optimum


def _row(
    name: str, history: History, config: RunConfig | None, optimum: Optimum | None
) -> tuple[str, ...]:
    loss, *values, bound = (
        history.last(column) for column in ("loss", "accuracy", "gap", "lower_bound")
    )
    residual = None if optimum is None else max(0.0, optimum.residual(loss))
    bound = bound or None  # torch's losses are never below 0: that it is so is no news
    seconds = sum(sum((record.seconds or {}).values()) for record in history)
    what = ("-", "-", "-")
    if config is not None:
        each = " each" if config.per_parameter else ""
        data = f"{config.dataset.rpartition('/')[2]}, {config.model}, {config.clients} clients, {config.partition}"
        what = (data, f"{config.constraint}{each}", str(config.algorithm))
    return (
        name,
        *what,
        str(len(history)),
        *("-" if value is None else f"{value:.4g}" for value in (loss, residual, *values, bound)),
        *(
            human_bytes(history.total(column))
            for column in ("bytes_up", "bytes_down", "bytes_dense")
        ),
        f"{seconds:.1f}",
    )
