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
)


def execute(options: argparse.Namespace) -> int:
    """Print a table of the runs in the given folders and save their plots in one picture; return
    the exit status.
    """
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
    columns = [_column(name, run, configs[name], optima[name]) for name, run in runs.items()]
    table = fitted(list(zip(_HEADER, *columns, strict=True)))
    print("\n\n".join([table, *_differences(configs)]))
    residuals = {name: optimum.residual for name, optimum in optima.items() if optimum is not None}
    save_figure(plot_runs(runs, residuals), options.out)
    print(f"\nplots: {options.out}")
    return 0


def _differences(configs: dict[str, RunConfig | None]) -> list[str]:
    """Return what keeps the runs' losses from being compared: problems that differ, or are not
    known.
    """
    recorded = {name: config for name, config in configs.items() if config is not None}
    notes = [
        f"{name} has no {CONFIG}: it is not known whether it is of the same problem as the others."
        for name in configs
        if name not in recorded and len(configs) > 1
    ]
    first = next(iter(recorded), "")
    for name, config in recorded.items():
        for option in _PROBLEM:
            expected = getattr(recorded[first], option)
            value = getattr(config, option)
            if value != expected:
                notes.append(
                    f"Different problems, so their losses cannot be compared: "
                    f"{option.replace('_', '-')} is {expected} in {first} and {value} in {name}."
                )
    if len({config.seed for config in recorded.values()}) > 1:
        notes.append("The seeds differ, so the same clients may hold other samples.")
    return notes


def _column(
    name: str, history: History, config: RunConfig | None, optimum: Optimum | None
) -> tuple[str, ...]:
    """Return a run's column of the table."""
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
