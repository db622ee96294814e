"""Plain tables for the terminal."""

import shutil
from collections.abc import Sequence
from itertools import zip_longest
from textwrap import fill, wrap

_GAP = "  "
_PIPE = 80
_READABLE = 14
"""The width to which a column of text may shrink before the table is divided into blocks."""


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
        The longest line. Wider tables wrap their cells; where that is not enough, the columns are
        divided into blocks, each of which begins with the first column.

    Examples
    --------
    >>> print(aligned([("set", "bytes"), ("l1", "3"), ("ksparse", "130")], right=[1]))
    set      bytes
    l1           3
    ksparse    130
    """
    natural = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    if width is None or _line_length(natural) <= width:
        return _block(rows, range(len(natural)), natural, right)
    readable = [min(size, max(_READABLE, _longest_word(rows, i))) for i, size in enumerate(natural)]
    blocks = []
    for columns in _divided(readable, width):
        least = [readable[i] for i in columns]
        most = [natural[i] for i in columns]
        blocks.append(_block(rows, columns, _widened(least, most, width), right))
    return "\n\n".join(blocks)


def fitted(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return a table as wide as the terminal at most; in a pipe 80 columns."""
    return aligned(rows, right, terminal_width())


def wrapped(text: str, indent: str = "") -> str:
    """Return a paragraph whose lines fit the terminal; lines after the first begin with a text."""
    return fill(text, terminal_width(), subsequent_indent=indent, break_on_hyphens=False)


def terminal_width() -> int:
    """Return the columns of the terminal; 80 in a pipe."""
    return shutil.get_terminal_size((_PIPE, 24)).columns


def _line_length(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _longest_word(rows: Sequence[Sequence[str]], column: int) -> int:
    return max(len(word) for row in rows for word in row[column].split() or [""])


def _divided(widths: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns of each block; every block begins with column 0."""
    blocks = [[0]]
    for column in range(1, len(widths)):
        longer = [*blocks[-1], column]
        if len(blocks[-1]) > 1 and _line_length([widths[i] for i in longer]) > width:
            longer = [0, column]
            blocks.append(longer)
        blocks[-1] = longer
    return blocks


def _widened(widths: Sequence[int], most: Sequence[int], width: int) -> list[int]:
    """Return the widths changed so that a line has ``width`` characters at most: the narrowest
    columns grow first, the widest shrink first.
    """
    found = list(widths)
    while _line_length(found) < width and found != list(most):
        growing = [i for i, size in enumerate(found) if size < most[i]]
        found[min(growing, key=lambda i: found[i])] += 1
    while _line_length(found) > width and max(found) > 1:
        found[found.index(max(found))] -= 1
    return found


def _block(
    rows: Sequence[Sequence[str]],
    columns: Sequence[int],
    widths: Sequence[int],
    right: Sequence[int],
) -> str:
    """Return the lines of some columns, whose cells are wrapped at their widths."""
    lines = []
    for row in rows:
        cells = [
            [row[column]] if len(row[column]) <= size else wrap(row[column], size)
            for column, size in zip(columns, widths, strict=True)
        ]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [
                part.rjust(size) if column in right else part.ljust(size)
                for part, column, size in zip(parts, columns, widths, strict=True)
            ]
            lines.append(_GAP.join(padded).rstrip())
    return "\n".join(lines)


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
