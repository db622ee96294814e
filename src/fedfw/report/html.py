"""A report as one self-contained HTML page: inline SVG plots and their data, nothing to be fetched."""

from __future__ import annotations

import base64
import re
from html import escape
from pathlib import Path

from fedfw.report.document import Attachment, Block, Cell, Document, Footer, Heading, Plot, Table, Text, text_of
from fedfw.rounds.files import write_atomically

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 90%; }
th, td { border: 1px solid #ccc; padding: .2rem .5rem; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.good { background: #dff2df; } .bad { background: #f8d7d7; } .plain { background: none; }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; }
figcaption, footer { color: #555; font-size: 90%; }
nav a { margin-right: 1rem; }
"""


def save_html(document: Document, path: Path) -> None:
    """Write the page, with links to its sections at the top."""
    sections = [block for block in document.blocks if isinstance(block, Heading) and block.level == 2]
    links = "".join(f'<a href="#{_anchor(h.text)}">{escape(h.text)}</a>' for h in sections)
    # The same clip paths and markers occur in several plots: every plot gets names of its own.
    parts = [_block(block, number) for number, block in enumerate(document.blocks)]
    head = f'<meta charset="utf-8"><title>{escape(document.title)}</title><style>{_STYLE}</style>'
    body = f"<h1>{escape(document.title)}</h1><nav>{links}</nav>{''.join(parts)}"
    text = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'
    write_atomically(path, text.encode())


def _block(block: Block, number: int) -> str:
    match block:
        case Heading(text, level):
            return f'<h{level} id="{_anchor(text)}">{escape(text)}</h{level}>'
        case Text(text):
            return f"<p>{escape(text)}</p>"
        case Table(header, rows):
            head = "".join(f"<th>{escape(name)}</th>" for name in header)
            body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
            return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        case Plot(svg, caption, csv, name):
            link = _download(f"{name}.csv", "data as CSV", csv, "text/csv")
            own = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>plot{number}-", svg)
            return f"<figure>{own}<figcaption>{escape(caption)} ({link})</figcaption></figure>"
        case Attachment(name, caption, text):
            return f"<p>{_download(name, caption, text, 'text/plain')}</p>"
        case Footer(lines):
            return "<footer>" + "<br>".join(map(escape, lines)) + "</footer>"


def _cell(cell: Cell) -> str:
    """Numbers, also with a deviation or a unit, are set as such."""
    text, kind = text_of(cell), "plain" if isinstance(cell, str) else cell[1]
    number = " number" if re.match(r"[-+]?\d[\d.e+-]*( ±.*| [kMG]?B|%)?$", text) else ""
    return f'<td class="{kind}{number}">{escape(text)}</td>'


def _download(name: str, label: str, text: str, kind: str) -> str:
    data = base64.b64encode(text.encode()).decode()
    return f'<a download="{escape(name)}" href="data:{kind};base64,{data}">{escape(label)}</a>'


def _anchor(text: str) -> str:
    return re.sub(r"\W+", "-", text.lower()).strip("-")
