"""Text that others have written, for terminals and logs: control characters reach neither."""

import re
from collections.abc import Sequence

_LONGEST = 200
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def escape_controls(text: str, keep: str = "") -> str:
    r"""Return the text with every character that is not printable written as Python writes it in a
    string.

    Parameters
    ----------
    text : str
        Any text.
    keep : str
        Characters that stay, such as line ends.

    Examples
    --------
    >>> print(escape_controls("all is well\n\x1b[2Jround 3"))
    all is well\n\x1b[2Jround 3
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def without_colours(text: str) -> str:
    """Return a log's text without the escape sequences by which programs colour it."""
    return _COLOURS.sub("", text)


def shortened(names: Sequence[str]) -> str:
    """Return names in one line, the first of them and how many there are where that is too long.

    Examples
    --------
    >>> shortened(["age", "weight"]), shortened(["x" * 100] * 3)[-14:]
    ('age, weight', '... (3 in all)')
    """
    text = ", ".join(map(escape_controls, names))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(names)} in all)"
