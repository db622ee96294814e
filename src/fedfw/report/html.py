"""One self-contained HTML page: tables, inline SVG plots and their data, nothing to be fetched."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fedfw.simulation.files import write_atomically

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.good { background: #dff2df; } .bad { background: #f8d7d7; } .plain { background: none; }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; }
figcaption, footer { color: #555; font-size: 90%; }
"""

Cell = str | tuple[str, str]
"""Text, or text with a class: good, bad or plain."""


class Page:
    """Built from top to bottom, then saved in one piece."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{escape(text)}</p>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Cells that begin with a digit or a sign are set as numbers."""
        head = "".join(f"<th>{escape(name)}</th>" for name in header)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def figure(self, figure: Figure, caption: str, csv: str, name: str) -> None:
        """A plot as SVG, with its data to be saved from the page as ``name``.csv."""
        data = base64.b64encode(csv.encode()).decode()
        link = f'<a download="{escape(name)}.csv" href="data:text/csv;base64,{data}">data as CSV</a>'
        self._parts.append(f"<figure>{_svg(figure)}<figcaption>{escape(caption)} ({link})</figcaption></figure>")

    def footer(self, lines: Sequence[str]) -> None:
        self._parts.append("<footer>" + "<br>".join(map(escape, lines)) + "</footer>")

    def save(self, path: Path) -> None:
        """Write the page."""
        head = f'<meta charset="utf-8"><title>{escape(self._title)}</title><style>{_STYLE}</style>'
        text = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{"".join(self._parts)}</body></html>\n'
        write_atomically(path, text.encode())


def _cell(cell: Cell) -> str:
    text, kind = cell if isinstance(cell, tuple) else (cell, "plain")
    number = " number" if text[:1].isdigit() or text[:1] in "+-" else ""
    return f'<td class="{kind}{number}">{escape(text)}</td>'


def _svg(figure: Figure) -> str:
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedfw", "svg.fonttype": "none"}):  # the same bytes every time
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]
