"""``fedfw compare``: several runs in one table and one picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedfw.deployment.records import DeployedRecord
from fedfw.report.plots import plot_runs, save_figure
from fedfw.report.tables import aligned, human_bytes
from fedfw.rounds.folders import HISTORY
from fedfw.rounds.records import History, read_history

_HEADER = ("run", "rounds", "loss", "accuracy", "gap", "optimum >=", "up", "down", "dense", "s in rounds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The runs and the picture."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", type=Path, default=Path("compare.png"), help="the picture [%(default)s]")


def execute(options: argparse.Namespace) -> int:
    """Print a table and save overlaid plots."""
    runs: dict[str, History] = {}
    for folder in options.folders:
        name = folder.name if folder.name not in runs else str(folder)
        runs[name] = _history(folder)
    print(aligned([_HEADER, *(_row(name, history) for name, history in runs.items())]))
    save_figure(plot_runs(runs), options.out)
    print(f"\nplots: {options.out}")
    return 0


def _history(folder: Path) -> History:
    path = folder / HISTORY
    if not path.exists():
        raise ValueError(f"{folder} is no run folder: it has no {HISTORY}")
    return read_history(path, DeployedRecord)  # a simulation's records have some of its fields


def _row(name: str, history: History) -> tuple[str, ...]:
    values = [history.last(column) for column in ("loss", "accuracy", "gap", "lower_bound")]
    seconds = sum(sum((record.seconds or {}).values()) for record in history)
    return (
        name,
        str(len(history)),
        *("-" if value is None else f"{value:.4g}" for value in values),
        *(human_bytes(history.total(column)) for column in ("bytes_up", "bytes_down", "bytes_dense")),
        f"{seconds:.1f}",
    )
