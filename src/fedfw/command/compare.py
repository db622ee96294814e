"""``fedfw compare``: several runs in one table and one picture."""

from __future__ import annotations

from pathlib import Path

from fedfw.command.progress import human_bytes
from fedfw.report.plots import plot_runs, save_figure
from fedfw.report.tables import aligned
from fedfw.simulation.history import History


def compare_runs(folders: list[Path], out: Path) -> int:
    """Print a table and save overlaid plots."""
    runs: dict[str, History] = {}
    for folder in folders:
        path = folder / "history.jsonl"
        if not path.exists():
            raise ValueError(f"{folder} is no run folder: it has no history.jsonl")
        name = folder.name if folder.name not in runs else str(folder)
        runs[name] = History.from_jsonl(path.read_text())
    header = ("run", "rounds", "loss", "accuracy", "gap", "optimum >=", "up", "down", "dense", "s in rounds")
    table: list[tuple[str, ...]] = [header]
    for name, history in runs.items():
        values = [history.last(column) for column in ("loss", "accuracy", "gap", "lower_bound")]
        seconds = sum(sum((record.seconds or {}).values()) for record in history)
        table.append(
            (
                name,
                str(len(history)),
                *("-" if value is None else f"{value:.4g}" for value in values),
                *(human_bytes(history.total(column)) for column in ("bytes_up", "bytes_down", "bytes_dense")),
                f"{seconds:.1f}",
            )
        )
    print(aligned(table))
    save_figure(plot_runs(runs), out)
    print(f"\nplots: {out}")
    return 0
