"""What tests of studies share: reports without pictures, and folders that lost a result."""

from pathlib import Path

import pytest

from fedfw_reproduction.kept import FILE


def draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not about pictures: a page has an empty one in the place of each, with its
    caption and numbers.
    """
    monkeypatch.setattr("fedfw_reproduction.document._svg", lambda figure: "<svg></svg>")


def forget_one(folder: Path) -> None:
    """Drop the first kept result of a folder, as if a call had been interrupted before it."""
    lines = (folder / FILE).read_text().splitlines(keepends=True)
    (folder / FILE).write_text("".join(lines[1:]))
