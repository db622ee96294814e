"""Print the size of the sources by room: statements, and lines of code, of docstrings and of
comments.

A statement is an ``ast.stmt`` that is not a docstring, so no formatting changes the count.
Only files that git tracks count.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

COLUMNS = ("statements", "code", "docstring", "comment")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def is_docstring(node: ast.AST) -> bool:
    """Return whether a node is a string that stands alone as a statement."""
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def docstring_lines(text: str) -> set[int]:
    """Return the numbers of all lines with docstrings."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if is_docstring(node):
            found.update(range(node.lineno, node.end_lineno + 1))
    return found


def code_lines(text: str) -> set[int]:
    """Return the numbers of all lines with code, docstrings and comments left out."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return code - docstring_lines(text)


def sizes(text: str) -> Counter[str]:
    """Return the count of every column for the text of one module."""
    statements = 0
    for node in ast.walk(ast.parse(text)):
        statements += isinstance(node, ast.stmt) and not is_docstring(node)
    code = code_lines(text)
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    docstrings = len(docstring_lines(text))
    lines = {"code": len(code), "docstring": docstrings, "comment": len(comments - code)}
    return Counter({"statements": statements, **lines})


def rooms_of(path: Path) -> list[str]:
    """Return the rooms that a file counts in: its own, and the whole that this belongs to."""
    parts = path.parts
    if parts[0] == "src":
        room = "/".join(parts[:3]) if len(parts) > 3 else "src/fedfw (its own modules)"
        return [room, "src/fedfw"]
    if parts[0] == "reproduction":
        if parts[1] == "tests":
            return ["reproduction/tests", "tests and reproduction/tests"]
        room = "/".join(parts[:3]) if len(parts) > 3 else "/".join(parts[:2])
        return [room, "reproduction without tests"]
    if parts[0] == "tests":
        return ["tests", "tests and reproduction/tests"]
    return [parts[0]]


def main() -> None:
    """Print a table: one line for each room, wholes behind their rooms."""
    root = Path(__file__).parent.parent
    listing = ["git", "ls-files", "*.py"]
    listed = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True)
    rooms: dict[str, Counter[str]] = {}
    for name in listed.stdout.split():
        size = sizes((root / name).read_text(encoding="utf-8"))
        for room in rooms_of(Path(name)):
            rooms.setdefault(room, Counter()).update(size)
    print(f"{'room':42}" + "".join(f"{column:>12}" for column in COLUMNS))
    for room, size in sorted(rooms.items()):
        print(f"{room:42}" + "".join(f"{size[column]:12,}" for column in COLUMNS))


if __name__ == "__main__":
    main()
