"""Tables as text: a line of names, then a line a row, with commas between the cells and quotes
around some.
"""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

_LONGEST = (
    1 << 20
)  # characters of a row, which may go on over several lines; its cells take twenty times as much
_FLOAT32 = float(np.finfo(np.float32).max)


def read_csv(path: Path) -> Iterator[list[str]]:
    """Read the names of the columns, which all differ, and then one row after the other, each with
    as many cells.

    A row is read when it is asked for. What is damaged is a ValueError that names the file and the
    row.
    """
    number = 1
    try:
        with open(path, encoding="utf-8-sig", newline="") as text:
            lines = _Lines(text)
            rows = csv.reader(lines, strict=True)
            names = next(rows, [])
            twice = (
                sorted({name for name in names if names.count(name) > 1})
                if len(names) < 10_000
                else ["too many"]
            )
            if not names or not all(names) or twice:
                raise ValueError(
                    f"names of columns {_shown(names[:3])} ..., expected a name for each, all different"
                )
            yield names
            lines.begin_row()
            for row in rows:
                number += 1
                if row and len(row) != len(names):
                    raise ValueError(f"{len(row)} cells, expected {len(names)} as in the first row")
                if row:
                    yield row
                lines.begin_row()
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is damaged or no table: row {number}: {error}") from None


def number_in(cell: str, column: str) -> float:
    """The number in a cell; a ValueError where there is none, or none that float32 can hold."""
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not -_FLOAT32 <= number <= _FLOAT32 or "_" in cell:  # Python takes 1_000 for a number
        raise ValueError(
            f"{_shown(column)} is {_shown(cell)}, expected a number from {-_FLOAT32:.3g} to {_FLOAT32:.3g}"
        )
    return number


class _Lines:
    """The lines of a text, as long as those of one row are short enough together."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._length = 0

    def begin_row(self) -> None:
        self._length = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(_LONGEST + 1)
        if not line:
            raise StopIteration
        self._length += len(line)
        if self._length > _LONGEST:
            raise ValueError(
                f"a row is longer than {_LONGEST} characters, expected at most so many"
            )
        return line


def _shown(cell: str | list[str]) -> str:
    return repr(cell[:40]) if isinstance(cell, str) else ", ".join(map(_shown, cell))
