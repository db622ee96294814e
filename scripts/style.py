"""Print figures of style for the library, beside those of other packages that are at hand.

Others are named by their folders: ``python scripts/style.py DIR/optax DIR/optimistix``.
The figures are a mirror: no build fails because of them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

from size import code_lines, is_docstring

WIDTH = 100
FORBIDDEN = re.compile(
    r"\b(nobody|somebody|whoever|everybody|everyone|told|tells|knows|wants)\b", re.IGNORECASE
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def is_tuple_assignment(node: ast.AST) -> bool:
    """Return whether a node assigns several values at once, such as ``a, b = 1, 2``."""
    if not isinstance(node, ast.Assign):
        return False
    return isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)


def count(text: str) -> Counter[str]:
    """Return the counts of one module, from which the figures are made."""
    found: Counter[str] = Counter()
    for node in ast.walk(ast.parse(text)):
        found["conditional"] += isinstance(node, ast.IfExp)
        found["comprehension"] += isinstance(node, COMPREHENSIONS)
        found["walrus"] += isinstance(node, ast.NamedExpr)
        found["assignment"] += isinstance(node, ast.Assign)
        found["tuple"] += is_tuple_assignment(node)
        if is_docstring(node):
            found["what"] += bool(re.match(r"\s*(What|Whether)\b", node.value.value))
    lines = text.splitlines()
    numbers = code_lines(text)
    found["code"] = len(numbers)
    found["characters"] = sum(len(lines[number - 1].strip()) for number in numbers)
    found["words"] = len(FORBIDDEN.findall(text))
    found["long"] = sum(len(line) > WIDTH for line in lines)
    return found


def figures(folder: Path) -> dict[str, float]:
    """Return the figures of all modules below a folder, by name."""
    found: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        found.update(count(path.read_text(encoding="utf-8")))
    lines = max(1, found["code"])
    return {
        "characters a code line": found["characters"] / lines,
        "conditional expressions per 1,000 code lines": 1000 * found["conditional"] / lines,
        "comprehensions per 1,000 code lines": 1000 * found["comprehension"] / lines,
        "walruses": found["walrus"],
        "tuple assignments, % of assignments": 100 * found["tuple"] / max(1, found["assignment"]),
        "docstrings that begin with What or Whether": found["what"],
        "forbidden words": found["words"],
        f"lines over {WIDTH} columns": found["long"],
    }


def main() -> None:
    """Print a table: a line for each figure, a column for each package."""
    folders = [Path(__file__).parent.parent / "src" / "fedfw"]
    folders += [Path(name) for name in sys.argv[1:]]
    for folder in folders:
        if not folder.is_dir():
            sys.exit(f"{folder} is no folder; give the folders of packages, such as DIR/optax")
    columns = [figures(folder) for folder in folders]
    print(f"{'':46}" + "".join(f"{folder.name:>14}" for folder in folders))
    for name in columns[0]:
        print(f"{name:46}" + "".join(f"{column[name]:14.1f}" for column in columns))


if __name__ == "__main__":
    main()
