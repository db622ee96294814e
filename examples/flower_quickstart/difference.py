"""Print how the app in ``after`` differs from the one in ``before``, and count the changed lines."""

import difflib
from pathlib import Path

HERE = Path(__file__).parent


def difference() -> list[str]:
    """Return the lines of a unified difference between the two apps, file by file."""
    found = []
    for new in sorted((HERE / "after").rglob("*")):
        if new.suffix not in (".py", ".toml"):
            continue
        name = new.relative_to(HERE / "after").as_posix()
        old = HERE / "before" / name
        texts = [path.read_text(encoding="utf-8").splitlines() for path in (old, new)]
        found += difflib.unified_diff(*texts, f"before/{name}", f"after/{name}", "", "", 1, "")
    return found


def count_changes(lines: list[str]) -> tuple[int, int]:
    """Return how many lines were added and removed, empty lines included."""
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return added, removed


if __name__ == "__main__":
    lines = difference()
    print("\n".join(lines))
    added, removed = count_changes(lines)
    print(f"\n{added} lines added, {removed} removed: {added + removed} changed lines")
