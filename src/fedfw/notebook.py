"""How objects show themselves in a notebook: a title, and a table of names and values."""

from collections.abc import Mapping, Sequence
from html import escape


def html_card(title: str, facts: Mapping[str, object]) -> str:
    """Return a title and its facts as HTML, with everything escaped.

    Parameters
    ----------
    title : str
        What the object is.
    facts : mapping of str to object
        Values by name; None is left out.

    Returns
    -------
    str

    Examples
    --------
    >>> html_card("L1Ball(r=1)", {"set": "||x||_1 <= r"})
    '<div><b>L1Ball(r=1)</b><table><tr><th>set</th><td>||x||_1 &lt;= r</td></tr></table></div>'
    """
    rows = (
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
        if value is not None
    )
    return f"<div><b>{escape(title)}</b><table>{''.join(rows)}</table></div>"


def html_rows(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a title and a table with a header as HTML, with everything escaped.

    Parameters
    ----------
    title : str
        What the object is.
    header : sequence of str
        The names of the columns.
    rows : sequence of sequences
        The cells; None is an empty one.

    Returns
    -------
    str

    Examples
    --------
    >>> html_rows("History", ["round"], [[1]])
    '<div><b>History</b><table><tr><th>round</th></tr><tr><td>1</td></tr></table></div>'
    """
    top = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = (
        "<tr>"
        + "".join(f"<td>{'' if cell is None else escape(str(cell))}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f"<div><b>{escape(title)}</b><table><tr>{top}</tr>{''.join(lines)}</table></div>"
