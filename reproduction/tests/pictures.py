"""Reports of studies without the time that their pictures take."""

from __future__ import annotations

import pytest


def draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not about pictures: a page has an empty one in the place of each, with its caption and numbers."""
    monkeypatch.setattr("fedfw.report.document._svg", lambda figure: "<svg></svg>")
