"""A file of kept results: a line of JSON each, sorted by key, so that a change shows a small
difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedfw_reproduction.schema import Identity, key

FILE = "results.jsonl"
"""The file of a study in its folder."""


class KeptResults:
    """Results by their keys, in one file.

    A result is appended as soon as it is there; `pack` sorts the file. A line that a killed process
    left unfinished is dropped when the file is read.

    Parameters
    ----------
    path : Path
        The file; it and its folder are made with the first result.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = _read(path)
        self._appended = False

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, described: Identity) -> dict[str, Any] | None:
        """Return a task's result, or None where there is none."""
        line = self._lines.get(key(described))
        if line is None:
            return None
        result: dict[str, Any] = json.loads(line)["result"]
        return result

    def add(self, described: Identity, result: dict[str, Any]) -> None:
        """Keep a result on disk at once."""
        name = key(described)
        line = json.dumps({"key": name, "computed": described, "result": result})
        self._lines[name] = line
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            if file.tell() > 0:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")  # ends the line that a killed process left unfinished
            file.write(line.encode() + b"\n")
        self._appended = True

    def pack(self) -> None:
        """Sort the file, if results were appended; results that another process appended meanwhile
        stay.
        """
        if not self._appended:
            return
        self._lines = _read(self.path) | self._lines
        text = "".join(self._lines[name] + "\n" for name in sorted(self._lines))
        packed = self.path.with_suffix(".packed")
        packed.write_text(text)
        packed.replace(self.path)
        self._appended = False


def _read(path: Path) -> dict[str, str]:
    """Return the lines of a file by key; the last line of a key counts."""
    if not path.is_file():
        return {}
    lines = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            name = json.loads(line)["key"]
        except (ValueError, KeyError, TypeError):
            if line.endswith("}"):
                message = (
                    f"{path}, line {number} is no kept result: restore the file, or delete the line"
                )
                raise ValueError(message) from None
            continue
        lines[name] = line
    return lines
