"""A report as a Markdown page with its plots as SVG files beside it; the numbers behind them are in
the HTML.
"""

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


def save_markdown(document: Document, path: Path) -> None:
    """Write ``path`` and a folder of the same name, without its ending, for the plots."""
    folder = path.with_suffix("")
    parts = [f"# {document.title}", *(_block(block, folder) for block in document.blocks)]
    write_atomically(path, ("\n\n".join(parts) + "\n").encode())


def _block(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return "#" * level + " " + text
        case Text(text):
            return _escaped(text)
        case Table(header, rows):
            lines = [_line(header), "|" + "---|" * len(header), *map(_line, rows)]
            return "\n".join(lines)
        case Plot(svg, caption, _, name):
            write_atomically(folder / f"{name}.svg", svg.encode())
            return f"![{caption}]({folder.name}/{name}.svg)\n\n{caption}"
        case Attachment(name, caption, _):
            return (
                f"The HTML report also has {caption} ({name}), and the data of every plot as CSV."
            )
        case Footer(lines):
            return "\n".join(f"- {line}" for line in lines)


def _line(cells: tuple[Cell, ...] | tuple[str, ...]) -> str:
    marked = (
        f"**{text_of(cell)}**" if not isinstance(cell, str) and cell[1] == "good" else text_of(cell)
        for cell in cells
    )
    return "| " + " | ".join(_escaped(text).replace("|", "\\|") for text in marked) + " |"


def _escaped(text: str) -> str:
    """<g, s> is an inner product here and a tag to Markdown."""
    return text.replace("<", "&lt;")
