"""How objects show themselves in a notebook: a title, and a table of names and values."""

from collections.abc import Mapping
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
