"""A report as one self-contained HTML page, with plots and their data in it, and as a Markdown page
with its plots beside it.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # what only computes, on a machine without pictures, comes by here as well
    from matplotlib.figure import Figure

Cell = str | tuple[str, str]
"""Text, or text with what it means: good, bad or plain."""
_FOLDER = "\0"
"""Stands for the folder of a Markdown page's plots until the page is written."""
_STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #555; --line: #ccc; --page: #fff; --good: #dff2df;
  --bad: #f8d7d7; --code: #f0f0f0; --link: #0b57d0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --soft: #aaa; --line: #555; --page: #1b1b1b; --good: #1e4620; --bad: #5c2323; --code: #2c2c2c;
    --link: #8ab4f8; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--page); overflow-wrap: break-word; }
a { color: var(--link); }
code { background: var(--code); padding: 0 .2em; border-radius: .2em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 90%; }
th, td { border: 1px solid var(--line); padding: .2rem .5rem; text-align: left; overflow-wrap: normal; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.good { background: var(--good); } .bad { background: var(--bad); }
figure { margin: 1.5rem 0; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; background: #fff; }
figcaption, footer { color: var(--soft); font-size: 90%; }
figcaption { position: sticky; left: 0; }
nav a { display: inline-block; margin-right: 1rem; }
@media (max-width: 40rem) {
  body { margin-top: 1rem; } h1 { font-size: 1.5rem; }
  figure svg { max-width: none; }
}
"""
_VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'


class Table(NamedTuple):
    """A header and rows of cells."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Document:
    """A page that is built from top to bottom, in both forms.

    Parameters
    ----------
    title : str
        Of the page.

    Attributes
    ----------
    html, markdown : list of str
        The blocks of the page in each form.
    first_tables : list of Table
        The first table under each heading of a section.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.html: list[str] = []
        self.markdown: list[str] = []
        self.first_tables: list[Table] = []
        self._wanted = False
        self._links: list[str] = []
        self._plots: dict[str, str] = {}

    def heading(self, text: str, level: int = 2) -> None:
        anchor = re.sub(r"\W+", "-", text.lower()).strip("-")
        if level == 2:
            self._wanted = True
            self._links.append(f'<a href="#{anchor}">{_inline(text)}</a>')
        self._add(f'<h{level} id="{anchor}">{_inline(text)}</h{level}>', f"{'#' * level} {text}")

    def text(self, text: str) -> None:
        self._add(f"<p>{_inline(text)}</p>", _escaped(text))

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        table = Table(tuple(header), tuple(map(tuple, rows)))
        if self._wanted:
            self.first_tables.append(table)
        self._wanted = False
        head = "".join(f"<th>{_inline(name)}</th>" for name in header)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
        lines = [_line(header), "|" + "---|" * len(header), *map(_line, table.rows)]
        self._add(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>",
            "\n".join(lines),
        )

    def plot(self, figure: Figure, caption: str, data: str, name: str) -> None:
        """Add a matplotlib figure with its numbers as CSV text (see `csv_text`); ``name`` is good
        for a file.
        """
        svg = _svg(figure)
        self._plots[name] = svg
        link = _download(f"{name}.csv", "data as CSV", data, "text/csv")
        # The same clip paths and markers occur in several plots: every plot gets names of its own.
        own = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>plot{len(self.html)}-", svg)
        self._add(
            f"<figure>{own}<figcaption>{_inline(caption)} ({link})</figcaption></figure>",
            f"![{caption}]({_FOLDER}/{name}.svg)\n\n{caption}",
        )

    def attachment(self, name: str, caption: str, text: str) -> None:
        """Add a text file to be saved from the HTML page."""
        self._add(
            f"<p>{_download(name, caption, text, 'text/plain')}</p>",
            f"The HTML report also has {caption} ({name}), and the data of every plot as CSV.",
        )

    def footer(self, lines: Sequence[str]) -> None:
        self._add(
            f"<footer>{'<br>'.join(map(_inline, lines))}</footer>",
            "\n".join(f"- {line}" for line in lines),
        )

    def _add(self, html: str, markdown: str) -> None:
        self.html.append(html)
        self.markdown.append(markdown)

    def save_html(self, path: Path) -> None:
        """Write the page, with links to its sections at the top."""
        head = (
            f'<meta charset="utf-8">{_VIEWPORT}'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style>"
        )
        body = (
            f"<h1>{_inline(self.title)}</h1><nav>{''.join(self._links)}</nav>{''.join(self.html)}"
        )
        text = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def save_markdown(self, path: Path) -> None:
        """Write ``path`` and a folder of the same name, without its ending, for the plots."""
        folder = path.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        for name, svg in self._plots.items():
            (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
        text = "\n\n".join([f"# {self.title}", *self.markdown]) + "\n"
        path.write_text(text.replace(_FOLDER, folder.name), encoding="utf-8")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as the text of a CSV file, numbers with six digits."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(
        [f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in rows
    )
    return text.getvalue()


def text_of(cell: Cell) -> str:
    """Return a cell without what it means."""
    if isinstance(cell, str):
        return cell
    return cell[0]


def _kind(cell: Cell) -> str:
    if isinstance(cell, str):
        return "plain"
    return cell[1]


def _cell(cell: Cell) -> str:
    """Return a cell as HTML; numbers, also with a deviation or a unit, are set as such."""
    text = text_of(cell)
    number = ""
    if re.match(r"[-+]?\d[\d.e+-]*( ±.*| [kMG]?B|%)?$", text):
        number = " number"
    return f'<td class="{_kind(cell)}{number}">{_inline(text)}</td>'


def _line(cells: Sequence[Cell]) -> str:
    marked = (f"**{text_of(cell)}**" if _kind(cell) == "good" else text_of(cell) for cell in cells)
    return "| " + " | ".join(_escaped(text).replace("|", "\\|") for text in marked) + " |"


def _inline(text: str) -> str:
    """Return text as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _escaped(text: str) -> str:
    """Return text as Markdown, where <g, s> would be a tag and is an inner product."""
    return text.replace("<", "&lt;")


def _download(name: str, label: str, text: str, kind: str) -> str:
    data = base64.b64encode(text.encode()).decode()
    return f'<a download="{escape(name)}" href="data:{kind};base64,{data}">{escape(label)}</a>'


def _svg(figure: Figure) -> str:
    import matplotlib

    drawn = io.StringIO()
    with matplotlib.rc_context(
        {"svg.hashsalt": "fedfw", "svg.fonttype": "none"}
    ):  # the same bytes every time
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    # Hundredths of a point are too small to be seen, and without them files are half as long.
    return re.sub(r"(\d\.\d\d)\d+", r"\1", text[text.index("<svg") :])
