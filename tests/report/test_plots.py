"""Pictures of runs: a colour is named once, styles once, axes show the run, and nothing lies over the curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from fedfw.report.plots import plot_runs
from fedfw.rounds.records import History, Record


def history(
    losses: Sequence[float | None], bounds: Sequence[float | None] | None = None, *, up: int = 10, dense: int = 1000
) -> History:
    """A run by its losses and lower bounds, with the same bytes in every round."""
    bounds = bounds or [None] * len(losses)
    return History(
        Record(
            round=t,
            loss=loss,
            accuracy=None if loss is None else 0.5,
            gap=loss,
            lower_bound=bound,
            bytes_up=up,
            bytes_down=2 * up,
            bytes_dense=dense,
        )
        for t, (loss, bound) in enumerate(zip(losses, bounds, strict=True), start=1)
    )


def panel(figure: object, start: str) -> Axes:
    return next(axis for axis in figure.axes if axis.get_title().startswith(start))  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 2, 6, 14])
def test_every_run_is_named_once_outside_of_the_panels(count: int) -> None:
    runs = {f"run {i}": history([3.0, 2.0 - 0.1 * i], [0.0, 1.0]) for i in range(count)}
    figure = plot_runs(runs)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(runs)
    colors = [to_hex(line.get_color()) for line in legend.get_lines()]
    assert len(set(colors)) == count
    assert all(axis.get_legend() is None for axis in figure.axes)
    figure.canvas.draw()
    bottom = legend.get_window_extent().y0
    assert all(axis.get_window_extent().y1 <= bottom for axis in figure.axes)  # titles and curves are below it
    for axis in figure.axes:
        assert {to_hex(line.get_color()) for line in axis.lines} <= {*colors, to_hex("0.4")}


def test_what_a_dense_exchange_takes_is_drawn_once_for_runs_of_one_kind() -> None:
    runs = {"a": history([2.0, 1.0]), "b": history([2.0, 1.5], up=20), "c": history([2.0, 1.5], dense=9)}
    axis = panel(plot_runs(runs), "bytes")
    assert all(style in axis.get_title() for style in ("solid", "dashed", "dotted"))
    assert sorted(line.get_linestyle() for line in axis.lines) == sorted([*3 * ["-"], *3 * ["--"], *2 * [":"]])
    assert axis.lines[0].get_linewidth() < axis.lines[4].get_linewidth()  # "c" sends what "a" sends: it shows beside it
    assert axis.lines[0].get_zorder() > axis.lines[4].get_zorder()
    totals = {tuple(line.get_ydata()) for line in axis.lines}
    assert {(10, 20), (20, 40), (40, 80), (1000, 2000), (9, 18)} == totals


def test_first_bounds_far_below_do_not_stretch_the_axis() -> None:
    axis = panel(plot_runs({"a": history([3.0, 2.5, 2.0], [-500.0, 0.0, 1.9])}), "loss")
    bottom, top = axis.get_ylim()
    assert 1.0 < bottom < 1.9
    assert 3.0 < top < 3.2
    assert axis.get_yscale() == "linear"


def test_a_run_that_blows_up_does_not_hide_the_others() -> None:
    axis = panel(plot_runs({"a": history([3.0, 0.2]), "b": history([3.0, 3e5])}), "loss")
    assert axis.get_yscale() == "log"
    low, high = axis.get_ylim()
    assert math.isclose(low, 0.1)
    assert high > 3e5


def test_where_all_optima_are_known_residuals_are_drawn() -> None:
    """F* is 1 and F(x^1) is 3: losses 2 and 1.5 are residuals 1/2 and 1/4, proven to be at most 1 and 3/8."""

    def residual(loss: float) -> float:
        return (loss - 1.0) / 2.0

    runs = {"a": history([2.0, 1.5], [0.0, 0.75])}
    axis = panel(plot_runs(runs, {"a": residual}), "residual")
    reached, proven = axis.lines
    assert list(reached.get_ydata()) == [0.5, 0.25]
    assert list(proven.get_ydata()) == [1.0, 0.375]
    assert (axis.get_yscale(), proven.get_linestyle()) == ("log", "--")
    (by_bytes,) = panel(plot_runs(runs, {"a": residual}), "residual against bytes").lines
    assert list(zip(by_bytes.get_xdata(), by_bytes.get_ydata(), strict=True)) == [(10, 0.5), (20, 0.25)]
    both = runs | {"b": history([2.0, 1.0])}
    assert panel(plot_runs(both, {"a": residual}), "loss").get_yscale() == "linear"  # the optimum of one is unknown
    reached = panel(plot_runs(both, {"a": residual, "b": residual}), "residual").lines[2]
    assert 0 < reached.get_ydata()[1] < 0.01  # type: ignore[index, operator]  # at the optimum, on a logarithmic axis


def test_what_was_not_recorded_is_said() -> None:
    hidden = history([None, None])
    titles = [axis.get_title() for axis in plot_runs({"private": hidden}).axes]
    assert [title.endswith("(not recorded)") for title in titles] == [True, True, True, False]
    numbers = History(replace(record, accuracy=None, test_loss=0.3) for record in history([2.0, 1.0]))
    assert list(panel(plot_runs({"a": numbers}), "test loss").lines[0].get_ydata()) == [0.3, 0.3]
    times = History(replace(record, accuracy=None, concordance=0.8, test_loss=0.3) for record in history([2.0, 1.0]))
    assert list(panel(plot_runs({"a": times}), "test concordance").lines[0].get_ydata()) == [0.8, 0.8]
