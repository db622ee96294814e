"""Pictures of runs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedfw.rounds.files import write_atomically
from fedfw.rounds.records import History


def plot_runs(runs: Mapping[str, History]) -> Figure:
    """Loss with the proven band, accuracy or concordance, gap and bytes, one line a run."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    (loss, accuracy), (gap, sent) = axes
    ordered = any(history.last("concordance") is not None for history in runs.values())
    measure = "concordance" if ordered else "accuracy"
    for i, (name, history) in enumerate(runs.items()):
        color = f"C{i % 10}"
        rounds, values = _evaluated(history, "loss")
        loss.plot(rounds, values, color=color, label=name)
        bounded = [
            (r.round, r.loss, r.lower_bound) for r in history if r.loss is not None and r.lower_bound is not None
        ]
        if bounded:
            at, top, bottom = zip(*bounded, strict=True)
            visible = min(values) - 2 * (max(values) - min(values))  # the first bounds may be far below
            loss.fill_between(at, [max(b, visible) for b in bottom], top, color=color, alpha=0.12, lw=0)
        accuracy.plot(*_evaluated(history, measure), color=color, label=name)
        gap.plot(*_evaluated(history, "gap"), color=color, label=name)
        for column, style in (("bytes_up", "-"), ("bytes_down", "--"), ("bytes_dense", ":")):
            totals = list(accumulate(getattr(r, column) for r in history))
            label = f"{name}: " + {"bytes_up": "up", "bytes_down": "down", "bytes_dense": "dense exchange"}[column]
            sent.plot([r.round for r in history], totals, style, color=color, label=label)
    loss.set(title="loss (band: proven range of the optimum)", xlabel="round")
    accuracy.set(title=f"test {measure}", xlabel="round")
    gap.set(title="Frank-Wolfe gap", xlabel="round", yscale="log")
    sent.set(title="bytes, in total", xlabel="round", yscale="log")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    loss.legend()
    sent.legend(fontsize="small")
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """A figure as a file of the kind that its ending says: .png (also without one), .svg or .pdf."""
    kind = path.suffix.lower().lstrip(".") or "png"
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"{path}: a picture ends in .png, .svg or .pdf")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, dpi=110)
    write_atomically(path, drawn.getvalue())


def _evaluated(history: History, column: str) -> tuple[list[int], list[Any]]:
    kept = [(r.round, value) for r in history if (value := getattr(r, column)) is not None]
    return [r for r, _ in kept], [v for _, v in kept]
