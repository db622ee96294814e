"""A report before it has a form: headings, paragraphs, tables and plots, in order."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what only computes, on a machine without pictures, comes by here as well
    from matplotlib.figure import Figure

Cell = str | tuple[str, str]
"""Text, or text with what it means: good, bad or plain."""


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Table:
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Plot:
    """``svg`` as text, and the plotted numbers as ``csv``; ``name`` is good for a file."""

    svg: str = field(repr=False)
    caption: str
    csv: str = field(repr=False)
    name: str


@dataclass(frozen=True)
class Attachment:
    """A text file to be saved from the page."""

    name: str
    caption: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class Footer:
    lines: tuple[str, ...]


Block = Heading | Text | Table | Plot | Attachment | Footer


class Document:
    """Built from top to bottom; `fedfw.report.html` and `fedfw.report.markdown` give it a form."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.blocks: list[Block] = []

    def heading(self, text: str, level: int = 2) -> None:
        self.blocks.append(Heading(text, level))

    def text(self, text: str) -> None:
        self.blocks.append(Text(text))

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        self.blocks.append(Table(tuple(header), tuple(map(tuple, rows))))

    def plot(self, figure: Figure, caption: str, data: str, name: str) -> None:
        """A matplotlib figure with its numbers as CSV text (see `csv_text`)."""
        self.blocks.append(Plot(_svg(figure), caption, data, name))

    def attachment(self, name: str, caption: str, text: str) -> None:
        self.blocks.append(Attachment(name, caption, text))

    def footer(self, lines: Sequence[str]) -> None:
        self.blocks.append(Footer(tuple(lines)))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as the text of a CSV file, numbers with six digits."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(
        [f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in rows
    )
    return text.getvalue()


def text_of(cell: Cell) -> str:
    """A cell without what it means."""
    return cell if isinstance(cell, str) else cell[0]


def _svg(figure: Figure) -> str:
    import matplotlib

    drawn = io.StringIO()
    with matplotlib.rc_context(
        {"svg.hashsalt": "fedfw", "svg.fonttype": "none"}
    ):  # the same bytes every time
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    # Hundredths of a point are more than anyone can see, and half of the bytes.
    return re.sub(r"(\d\.\d\d)\d+", r"\1", text[text.index("<svg") :])
