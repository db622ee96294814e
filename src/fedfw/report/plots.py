"""Pictures of runs."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedfw.rounds.files import write_atomically
from fedfw.rounds.records import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Residual = Callable[[float], float]
"""A loss as a residual: 1 where the run began, 0 at the optimum."""
Colors = Mapping[str, Any]
"""A colour for every run, by its name."""
# residuals below are drawn there, as optima are not known much better; those above are not
_LEAST = 1e-4
_WORST = 10.0
_PALETTE = 10
_MANY = colormaps["turbo"]
_STRETCH = 10.0  # a loss that changes by this factor is drawn on a logarithmic axis


def plot_runs(
    runs: Mapping[str, History], residuals: Mapping[str, Residual] | None = None
) -> Figure:
    """Loss with what is proven, accuracy or concordance, gap and bytes: a colour a run, named once
    above the panels.

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
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.FedFW(fedfw.Box(-1.0, 1.0)), rounds=3)
    >>> [axis.get_title() for axis in plot_runs({"fedfw": run.history}).axes[2:]]
    ['Frank-Wolfe gap', 'bytes in total: up solid, down dashed, dense dotted']
    """
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    (loss, accuracy), (gap, sent) = axes
    # Of more runs than the palette has, those next to each other are alike.
    colors = {
        n: f"C{i}" if len(runs) <= _PALETTE else _MANY(i / (len(runs) - 1))
        for i, n in enumerate(runs)
    }
    if residuals and all(name in residuals for name in runs):
        _plot_residuals(loss, gap, runs, residuals, colors)
    else:
        _plot_losses(loss, runs, colors)
        _plot_column(gap, runs, "gap", colors)
        gap.set(title="Frank-Wolfe gap", yscale="log")
    known = (
        one
        for one in ("concordance", "accuracy")
        if any(h.last(one) is not None for h in runs.values())
    )
    measure = next(known, "test_loss")
    _plot_column(accuracy, runs, measure, colors)
    accuracy.set_title(f"test {measure.removeprefix('test_')}")
    _plot_bytes(sent, runs, colors)
    for axis in axes.flat:
        if axis.get_xscale() == "linear":
            axis.set_xlabel("round")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axis.grid(alpha=0.3)
        if not any(len(line.get_xydata()) for line in axis.lines):
            axis.set(
                title=f"{axis.get_title().partition(' (')[0]} (not recorded)",
                yscale="linear",
                yticks=[],
            )
    named = [Line2D([], [], color=color, label=name) for name, color in colors.items()]
    figure.legend(
        handles=named,
        loc="outside upper center",
        ncols=min(len(named), 3 if len(named) <= 6 else 5),
    )
    return figure


def save_figure(figure: Figure, path: Path, *, private: bool = False) -> None:
    """Return a figure as a file of the kind that its ending says: .png (also without one), .svg or
    .pdf.

    With ``private`` nobody but the file's owner may read it.
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
    """What is left of the way to the optimum by rounds and bytes and, dashed, how much is proven to
    be left at most.
    """
    for name, history in runs.items():
        of = residuals[name]
        color = colors[name]
        rounds, losses = _recorded(history, "loss")
        left = [max(of(value), _LEAST) for value in losses]
        by_round.plot(rounds, left, color=color)
        at, losses, bounds = _bounded(history)
        proven = [
            max(of(value) - of(bound), _LEAST) for value, bound in zip(losses, bounds, strict=True)
        ]
        by_round.plot(at, proven, "--", color=color, alpha=0.7)
        sent = dict(zip((r.round for r in history), _totals(history, "bytes_up"), strict=True))
        by_bytes.plot([sent[t] for t in rounds], left, color=color)
    by_round.set(title="residual: left of the way to the optimum (dashed: proven)", yscale="log")
    by_bytes.set(
        title="residual against bytes", xlabel="sent up in total", yscale="log", xscale="log"
    )
    by_bytes.xaxis.set_major_formatter(EngFormatter("B"))
    for axis in (by_round, by_bytes):
        bottom, top = axis.get_ylim()
        axis.set_ylim(bottom, min(top, _WORST))  # the first bounds prove nothing


def _plot_losses(axis: Axes, runs: Mapping[str, History], colors: Colors) -> None:
    """Losses and, dashed, what is proven of the optimum, as far as it is near them."""
    _plot_column(axis, runs, "loss", colors)
    drawn = [value for history in runs.values() for value in _recorded(history, "loss")[1]]
    proven: list[float] = []
    for name, history in runs.items():
        at, _, bounds = _bounded(history)
        axis.plot(at, bounds, "--", color=colors[name], alpha=0.7)
        proven += bounds
    axis.set_title("loss (dashed: the optimum is proven to be above)")
    if drawn:
        low = min(drawn)
        high = max(drawn)
        if low > 0 and high > _STRETCH * low:
            axis.set(yscale="log", ylim=(low / 2, 1.1 * high))
        else:
            room = max(high - low, 1e-9 * max(abs(high), 1.0))
            nearest = max(
                low - 0.5 * room, min([low, *proven])
            )  # the first bounds may be far below
            axis.set_ylim(nearest - 0.05 * room, high + 0.05 * room)


def _plot_column(axis: Axes, runs: Mapping[str, History], column: str, colors: Colors) -> None:
    for name, history in runs.items():
        axis.plot(*_recorded(history, column), color=colors[name])


def _plot_bytes(axis: Axes, runs: Mapping[str, History], colors: Colors) -> None:
    """Totals by round. Equal curves lie on wider ones; what a dense exchange takes is grey, and
    drawn once.
    """
    drawn: Counter[tuple[int, ...]] = Counter()
    dense = set()
    for name, history in runs.items():
        rounds = tuple(r.round for r in history)
        for column, style in (("bytes_up", "-"), ("bytes_down", "--")):
            totals = _totals(history, column)
            before = drawn[totals]
            axis.plot(
                rounds,
                totals,
                style,
                color=colors[name],
                lw=1.5 + 2.5 * before,
                zorder=2 - 0.01 * before,
            )
            drawn[totals] += 1
        dense.add((rounds, _totals(history, "bytes_dense")))
    for rounds, totals in sorted(dense):
        axis.plot(rounds, totals, ":", color="0.4")
    axis.set(title="bytes in total: up solid, down dashed, dense dotted", yscale="log")
    axis.yaxis.set_major_formatter(EngFormatter("B"))


def _totals(history: History, column: str) -> tuple[int, ...]:
    """What a column has added up to after each round."""
    return tuple(accumulate(getattr(record, column) for record in history))


def _recorded(history: History, column: str) -> tuple[list[int], list[Any]]:
    kept = [(r.round, value) for r in history if (value := getattr(r, column)) is not None]
    return [r for r, _ in kept], [v for _, v in kept]


def _bounded(history: History) -> tuple[list[int], list[float], list[float]]:
    """Rounds, losses and lower bounds where both are known."""
    kept = [
        (r.round, r.loss, r.lower_bound)
        for r in history
        if r.loss is not None and r.lower_bound is not None
    ]
    return [r for r, _, _ in kept], [loss for _, loss, _ in kept], [bound for _, _, bound in kept]
