"""One report in two forms: nothing lost, nothing to be fetched, nothing taken for markup."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fedfw.report.document import Document, csv_text
from fedfw.report.plots import plot_runs
from fedfw.rounds.records import History, Record


def document() -> Document:
    page = Document("Title <b>")
    page.heading("One & two")
    page.text("a < b")
    page.table(("name", "value"), [("x|y", ("1.5", "good")), ("<i>", ("-2", "bad"))])
    for name in ("first", "second"):
        figure = Figure()
        figure.subplots().plot([0, 1], [1, 0])
        page.plot(figure, f"the {name}", csv_text(("t", "y"), [(0, 1), (1, 0)]), name)
    page.attachment("notes.txt", "notes", "a, b")
    page.footer(["made today"])
    return page


def test_html_is_self_contained(tmp_path: Path) -> None:
    document().save_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == text.count("<figure>") == 2
    assert "<h1>Title &lt;b&gt;</h1>" in text
    assert '<td class="good number">1.5</td>' in text
    assert '<td class="plain">&lt;i&gt;</td>' in text
    fetched = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(link.startswith(("data:", "#")) for link in fetched)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))  # plots do not share clip paths
    assert {link[1:] for link in fetched if link.startswith("#")} <= set(ids)


def test_markdown_has_its_plots_beside_it(tmp_path: Path) -> None:
    document().save_markdown(tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| x\\|y | **1.5** |" in text
    assert "| &lt;i> | -2 |" in text
    assert "a &lt; b" in text
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / link).is_file()
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"first.svg", "second.svg"}


# --- Pictures of runs: a colour is named once, styles once, axes show the run, and nothing lies
# over the curves ---


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
    assert all(
        axis.get_window_extent().y1 <= bottom for axis in figure.axes
    )  # titles and curves are below it
    for axis in figure.axes:
        assert {to_hex(line.get_color()) for line in axis.lines} <= {*colors, to_hex("0.4")}
