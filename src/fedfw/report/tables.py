"""Plain tables for the terminal."""

import shutil
from collections.abc import Sequence
from itertools import zip_longest
from textwrap import fill, wrap

_GAP = "  "


def aligned(
    rows: Sequence[Sequence[str]], right: Sequence[int] = (), width: int | None = None
) -> str:
    """Return rows of cells as lines with aligned columns.

    Parameters
    ----------
    rows : sequence of sequences of str
        The cells; the first row is the header where there is one.
    right : sequence of int
        The columns that are aligned to the right.
    width : int, optional
        The longest line. In wider tables the widest columns are wrapped.

    Examples
    --------
    >>> print(aligned([("set", "bytes"), ("l1", "3"), ("ksparse", "130")], right=[1]))
    set      bytes
    l1           3
    ksparse    130
    """
    widths = [max(1, *map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        _shrink(widths, width - len(_GAP) * (len(widths) - 1))
    lines = []
    for row in rows:
        cells = [wrap(cell, size) for cell, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [
                part.rjust(size) if i in right else part.ljust(size)
                for i, (part, size) in enumerate(zip(parts, widths, strict=True))
            ]
            lines.append(_GAP.join(padded).rstrip())
    return "\n".join(lines)


def _shrink(widths: list[int], total: int) -> None:
    """Make the widest columns narrower until all together have ``total`` characters at most."""
    while sum(widths) > total and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1


def fitted(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return a table as wide as the terminal at most; in a pipe 80 columns."""
    return aligned(rows, right, terminal_width())


def wrapped(text: str, indent: str = "") -> str:
    """Return a paragraph whose lines fit the terminal; lines after the first begin with a text."""
    return fill(text, terminal_width(), subsequent_indent=indent, break_on_hyphens=False)


def terminal_width() -> int:
    """Return the columns of the terminal; 80 in a pipe."""
    return shutil.get_terminal_size((80, 24)).columns


def human_bytes(count: float) -> str:
    """Return a number of bytes for people.

    Examples
    --------
    >>> human_bytes(1234)
    '1.2 kB'
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
