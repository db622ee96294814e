"""``fedfw compare``: several runs in one table and one picture."""

import argparse
from pathlib import Path

from fedfw.cli.arguments import adds, argument
from fedfw.cli.closing import CONFIG, kept_optimum
from fedfw.config import RunConfig, read_config
from fedfw.deployment.records import DeployedRecord
from fedfw.options import options_of
from fedfw.presets import ProblemOptions
from fedfw.report.plots import plot_runs, save_figure
from fedfw.report.tables import fitted, human_bytes
from fedfw.rounds.folders import HISTORY
from fedfw.rounds.records import History, read_history
from fedfw.solving import Optimum

_HEADER = (
    *("run", "data", "set", "algorithm", "rounds", "loss", "residual", "accuracy", "gap"),
    *("optimum >=", "up", "down", "dense", "s in rounds"),
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
    optima: dict[str, Optimum | None] = {}
    for folder in options.folders:
        name = folder.name if folder.name not in runs else str(folder)
        if not (folder / HISTORY).exists():
            raise ValueError(f"{folder} is no run folder: it has no {HISTORY}")
        # A simulation's records have some of the fields of a deployment's.
        runs[name] = read_history(folder / HISTORY, DeployedRecord)
        configs[name] = read_config(folder / CONFIG) if (folder / CONFIG).exists() else None
        optima[name] = kept_optimum(folder)
    notes = _validate_same_problem(configs, allowed=options.mixed)
    rows = [_row(name, run, configs[name], optima[name]) for name, run in runs.items()]
    print("\n\n".join([fitted([_HEADER, *rows]), *notes]))
    residuals = {name: optimum.residual for name, optimum in optima.items() if optimum is not None}
    save_figure(plot_runs(runs, residuals), options.out)
    print(f"\nplots: {options.out}")
    return 0


def _validate_same_problem(configs: dict[str, RunConfig | None], *, allowed: bool) -> list[str]:
    """Refuse runs of different problems unless these are allowed; return notes on the table."""
    recorded = {name: config for name, config in configs.items() if config is not None}
    notes = [
        f"{name} has no {CONFIG}: it is not known whether it is of the same problem as the others"
        for name in configs
        if name not in recorded and len(configs) > 1
    ]
    first = next(iter(recorded), "")
    differences = [
        f"{option.replace('_', '-')} is {getattr(recorded[first], option)} in {first} and "
        f"{getattr(config, option)} in {name}"
        for name, config in recorded.items()
        for option in _PROBLEM
        if getattr(recorded[first], option) != getattr(config, option)
    ]
    if differences and not allowed:
        raise ValueError(
            "these runs are of different problems, so their losses cannot be compared: "
            f"{differences[0]}; --mixed shows them beside each other all the same"
        )
    notes += [
        f"Different problems: {difference}, so their losses cannot be compared."
        for difference in differences
    ]
    if len({config.seed for config in recorded.values()}) > 1:
        notes.append("The seeds differ, so the same clients may hold other samples.")
    return notes


def _row(
    name: str, history: History, config: RunConfig | None, optimum: Optimum | None
) -> tuple[str, ...]:
    """Return a run's line of the table."""
    loss = history.last("loss")
    figures = (
        loss,
        None if optimum is None or loss is None else max(0.0, optimum.residual(loss)),
        history.last("accuracy"),
        history.last("gap"),
        # torch's losses are never below 0, so a bound of 0 says nothing.
        history.last("lower_bound") or None,
    )
    seconds = sum(sum((record.seconds or {}).values()) for record in history)
    task = ("-", "-", "-")
    if config is not None:
        suffix = " each" if config.per_parameter else ""
        dataset = config.dataset.rpartition("/")[2]
        data = f"{dataset}, {config.model}, {config.clients} clients, {config.partition}"
        task = (data, f"{config.constraint}{suffix}", str(config.algorithm))
    return (
        name,
        *task,
        str(len(history)),
        *("-" if value is None else f"{value:.4g}" for value in figures),
        *(human_bytes(history.total(way)) for way in ("bytes_up", "bytes_down", "bytes_dense")),
        f"{seconds:.1f}",
    )
