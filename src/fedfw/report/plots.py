"""Pictures of runs, and of the samples that clients hold."""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator
from torch import Tensor

from fedfw.rounds.files import write_atomically
from fedfw.rounds.records import History

Residual = Callable[[float], float]
"""A loss as a residual: 1 where the run began, 0 at the optimum."""
Colors = Mapping[str, Any]
"""A colour for every run, by its name."""
# residuals below are drawn there, as optima are not known much better; those above are not
_LEAST = 1e-4
_WORST = 10.0
_PALETTE = 10
_CELLS_WITH_NUMBERS = 400
_LETTERS = 120  # of the legend, in the width of the figure
_HANDLE = 8  # letters that the line before a name takes the place of
_MOST_COLUMNS = 5
_ROW = 0.16  # inches of a client's row, in which a number can be read
_STRETCH = 10.0  # a loss that changes by this factor is drawn on a logarithmic axis


def plot_runs(
    runs: Mapping[str, History], residuals: Mapping[str, Residual] | None = None
) -> Figure:
    """Draw loss with what is proven, accuracy or concordance, gap and bytes: a colour a run, named
    once above the panels.

    Parameters
    ----------
    runs : mapping of str to History
        By the names that the legend has.
    residuals : mapping of str to callable, optional
        How losses become residuals, for every run whose optimum is known. Where it is known of all
        of them, residuals are drawn in place of losses, and residuals against bytes in place of
        gaps.

    Examples
    --------
    >>> import fedfw
    >>> run = fedfw.simulate(
    ...     fedfw.testing.two_quadratics(), fedfw.FedFW(fedfw.Box(-1.0, 1.0)), rounds=3
    ... )
    >>> [axis.get_title() for axis in plot_runs({"fedfw": run.history}).axes[2:]]
    ['Frank-Wolfe gap', 'bytes in total: up solid, down dashed, dense dotted']
    """
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    (loss, accuracy), (gap, sent) = axes
    # Of more runs than the palette has, those next to each other are alike.
    colors = {
        n: f"C{i}" if len(runs) <= _PALETTE else colormaps["turbo"](i / (len(runs) - 1))
        for i, n in enumerate(runs)
    }
    if residuals and all(name in residuals for name in runs):
        _plot_residuals(loss, gap, runs, residuals, colors)
    else:
        _plot_losses(loss, runs, colors)
        _plot_column(gap, runs, "gap", colors)
        gap.set(title="Frank-Wolfe gap", yscale="log")
    measured = {
        column
        for column in ("accuracy", "concordance")
        for history in runs.values()
        if history.last(column) is not None
    }
    measure = max(measured, default="test_loss")  # concordance where runs have both
    _plot_column(accuracy, runs, measure, colors)
    accuracy.set_title(f"test {measure.removeprefix('test_')}")
    _plot_bytes(sent, runs, colors)
    for axis in axes.flat:
        if axis.get_xscale() == "linear":
            axis.set_xlabel("round")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axis.grid(alpha=0.3)
        if not any(len(line.get_xydata()) for line in axis.lines):
            title = f"{axis.get_title().partition(' (')[0]} (not recorded)"
            axis.set(title=title, xlabel="", yscale="linear", xticks=[], yticks=[])
    named = [Line2D([], [], color=color, label=name) for name, color in colors.items()]
    figure.legend(
        handles=named,
        loc="outside upper center",
        ncols=_columns_of_legend(list(colors)),
    )
    return figure


def _columns_of_legend(names: Sequence[str]) -> int:
    """Return how many columns of names fit into the figure, in rows of about the same length."""
    longest = max(map(len, names), default=0)
    most = max(1, min(_LETTERS // (longest + _HANDLE), _MOST_COLUMNS))
    rows = math.ceil(len(names) / most)
    return math.ceil(len(names) / max(1, rows))


def plot_holdings(counts: Tensor, title: str) -> Figure:
    """Return a heat map for counts (clients, labels), a bar chart of sizes for counts
    (clients,).
    """
    values = counts.numpy()
    numbered = counts.dim() == 2 and values.size <= _CELLS_WITH_NUMBERS
    height = max(5.0, _ROW * len(values)) if numbered else 5.0
    figure = Figure(figsize=(9, height), layout="constrained")
    axis = figure.subplots()
    if counts.dim() == 1:
        axis.bar(range(len(values)), values)
        axis.set(title=title, xlabel="client", ylabel="samples")
    else:
        # The square root keeps small holdings visible beside large ones; none at all is white.
        shades = PowerNorm(gamma=0.5, vmin=0, vmax=max(1, values.max()))
        positive = np.ma.masked_equal(values, 0)
        picture = axis.imshow(positive, aspect="auto", cmap="Wistia", norm=shades)
        figure.colorbar(picture, ax=axis, label="samples")
        for (client, label), count in np.ndenumerate(values):
            if count and numbered:
                axis.text(label, client, str(count), ha="center", va="center", fontsize=8)
        axis.set(title=title, xlabel="label", ylabel="client")
    axis.locator_params(integer=True, nbins=30, steps=[1, 2, 5, 10])
    return figure


def save_figure(figure: Figure, path: Path, *, private: bool = False) -> None:
    """Save a figure as a file of the kind that its ending says: .png (also without one), .svg or
    .pdf; with ``private`` only the file's owner may read it.
    """
    kind = path.suffix.lower().lstrip(".") or "png"
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"{path}: a picture ends in .png, .svg or .pdf")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, dpi=110)
    write_atomically(path, drawn.getvalue(), private=private)


def _plot_residuals(
    by_round: Axes,
    by_bytes: Axes,
    runs: Mapping[str, History],
    residuals: Mapping[str, Residual],
    colors: Colors,
) -> None:
    """Draw residuals by rounds and bytes and, dashed, their proven upper bounds by rounds."""
    for name, history in runs.items():
        residual = residuals[name]
        rounds, losses = _recorded(history, "loss")
        # A logarithmic axis has no 0: residuals are drawn as _LEAST at least.
        shown = [max(residual(value), _LEAST) for value in losses]
        by_round.plot(rounds, shown, color=colors[name])
        bound_rounds, losses, bounds = _recorded(history, "loss", "lower_bound")
        # (loss - bound) / initial gap; the first bounds prove nothing, and are cut at _WORST.
        proven = [
            min(max(residual(value) - residual(bound), _LEAST), _WORST)
            for value, bound in zip(losses, bounds, strict=True)
        ]
        by_round.plot(bound_rounds, proven, "--", color=colors[name], alpha=0.7)
        sent = dict(zip((r.round for r in history), _totals(history, "bytes_up"), strict=True))
        by_bytes.plot([sent[t] for t in rounds], shown, color=colors[name])
    by_round.set(title="residual: part of the initial gap (dashed: proven)", yscale="log")
    by_bytes.set(
        title="residual against bytes", xlabel="sent up in total", yscale="log", xscale="log"
    )
    by_bytes.xaxis.set_major_formatter(EngFormatter("B"))


def _plot_losses(axis: Axes, runs: Mapping[str, History], colors: Colors) -> None:
    """Draw losses and, dashed, lower bounds on the optimum that are not far below the losses."""
    _plot_column(axis, runs, "loss", colors)
    axis.set_title("loss (dashed: the optimum is proven to be above)")
    drawn = [value for history in runs.values() for value in _recorded(history, "loss")[1]]
    if drawn and min(drawn) > 0 and max(drawn) > _STRETCH * min(drawn):
        axis.set_yscale("log")
    # Bounds are drawn down to half of the losses' range below the least loss: m - (M - m) / 2.
    lowest = 1.5 * min(drawn, default=0.0) - 0.5 * max(drawn, default=0.0)
    for name, history in runs.items():
        rounds, _, bounds = _recorded(history, "loss", "lower_bound")
        near = [bound if bound >= lowest else math.nan for bound in bounds]  # NaN is not drawn
        axis.plot(rounds, near, "--", color=colors[name], alpha=0.7)


def _plot_column(axis: Axes, runs: Mapping[str, History], column: str, colors: Colors) -> None:
    for name, history in runs.items():
        axis.plot(*_recorded(history, column), color=colors[name])


def _plot_bytes(axis: Axes, runs: Mapping[str, History], colors: Colors) -> None:
    """Draw totals by round; what a dense exchange takes is grey, and drawn once."""
    dense = set()
    for name, history in runs.items():
        rounds = tuple(r.round for r in history)
        axis.plot(rounds, _totals(history, "bytes_up"), "-", color=colors[name])
        axis.plot(rounds, _totals(history, "bytes_down"), "--", color=colors[name])
        dense.add((rounds, _totals(history, "bytes_dense")))
    for rounds, totals in sorted(dense):
        axis.plot(rounds, totals, ":", color="0.4")
    axis.set(title="bytes in total: up solid, down dashed, dense dotted", yscale="log")
    axis.yaxis.set_major_formatter(EngFormatter("B"))


def _totals(history: History, column: str) -> tuple[int, ...]:
    """Return what a column has added up to after each round."""
    return tuple(accumulate(getattr(record, column) for record in history))


def _recorded(history: History, *columns: str) -> list[list[Any]]:
    """Return rounds, and the values of each column, where all of the columns have a value."""
    kept = [r for r in history if all(getattr(r, column) is not None for column in columns)]
    return [[getattr(r, name) for r in kept] for name in ("round", *columns)]
