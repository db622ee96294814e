"""Pictures of runs: a colour is named once, styles once, axes show the run, and nothing lies over
the curves.
"""

from collections.abc import Sequence

import pytest
from matplotlib.colors import to_hex

from fedfw.report.plots import plot_runs
from fedfw.rounds.records import History, Record


def history(
    losses: Sequence[float | None],
    bounds: Sequence[float | None] | None = None,
    *,
    up: int = 10,
    dense: int = 1000,
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


@pytest.mark.parametrize("name", ["run", "20260101-120000-fedfwplus-some-long-name"])
@pytest.mark.parametrize("count", [1, 2, 6, 14])
def test_every_run_is_named_once_outside_of_the_panels(count: int, name: str) -> None:
    runs = {f"{name} {i}": history([3.0, 2.0 - 0.1 * i], [0.0, 1.0]) for i in range(count)}
    figure = plot_runs(runs)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(runs)
    colors = [to_hex(line.get_color()) for line in legend.get_lines()]
    assert len(set(colors)) == count
    assert all(axis.get_legend() is None for axis in figure.axes)
    figure.draw_without_rendering()
    extent = legend.get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.x1
    bottom = extent.y0
    assert all(
        axis.get_window_extent().y1 <= bottom for axis in figure.axes
    )  # titles and curves are below it
    for axis in figure.axes:
        assert {to_hex(line.get_color()) for line in axis.lines} <= {*colors, to_hex("0.4")}
