"""A report as one self-contained HTML page: inline SVG plots and their data, nothing to be fetched."""

import base64
import re
from html import escape
from pathlib import Path

from fedfw.report.document import (
    Attachment,
    Block,
    Cell,
    Document,
    Footer,
    Heading,
    Plot,
    Table,
    Text,
    text_of,
)
from fedfw.rounds.files import write_atomically

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


def save_html(document: Document, path: Path) -> None:
    """Write the page, with links to its sections at the top."""
    sections = [
        block for block in document.blocks if isinstance(block, Heading) and block.level == 2
    ]
    links = "".join(f'<a href="#{_anchor(h.text)}">{_inline(h.text)}</a>' for h in sections)
    # The same clip paths and markers occur in several plots: every plot gets names of its own.
    parts = [_block(block, number) for number, block in enumerate(document.blocks)]
    head = f'<meta charset="utf-8">{_VIEWPORT}<title>{escape(document.title)}</title><style>{_STYLE}</style>'
    body = f"<h1>{_inline(document.title)}</h1><nav>{links}</nav>{''.join(parts)}"
    text = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'
    write_atomically(path, text.encode())


def _block(block: Block, number: int) -> str:
    match block:
        case Heading(text, level):
            return f'<h{level} id="{_anchor(text)}">{_inline(text)}</h{level}>'
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Table(header, rows):
            head = "".join(f"<th>{_inline(name)}</th>" for name in header)
            body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
            return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        case Plot(svg, caption, csv, name):
            link = _download(f"{name}.csv", "data as CSV", csv, "text/csv")
            own = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>plot{number}-", svg)
            return f"<figure>{own}<figcaption>{_inline(caption)} ({link})</figcaption></figure>"
        case Attachment(name, caption, text):
            return f"<p>{_download(name, caption, text, 'text/plain')}</p>"
        case Footer(lines):
            return "<footer>" + "<br>".join(map(_inline, lines)) + "</footer>"


def _cell(cell: Cell) -> str:
    """Numbers, also with a deviation or a unit, are set as such."""
    text, kind = text_of(cell), "plain" if isinstance(cell, str) else cell[1]
    number = " number" if re.match(r"[-+]?\d[\d.e+-]*( ±.*| [kMG]?B|%)?$", text) else ""
    return f'<td class="{kind}{number}">{_inline(text)}</td>'


def _inline(text: str) -> str:
    """Text as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _download(name: str, label: str, text: str, kind: str) -> str:
    data = base64.b64encode(text.encode()).decode()
    return f'<a download="{escape(name)}" href="data:{kind};base64,{data}">{escape(label)}</a>'


def _anchor(text: str) -> str:
    return re.sub(r"\W+", "-", text.lower()).strip("-")
