"""Plain tables for the terminal."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows of cells as lines with columns under each other; ``right`` lists the columns that end
    together.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
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
            if unit == "B":
                return f"{count:.3g} {unit}"
            return f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
