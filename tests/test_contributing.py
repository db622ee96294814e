"""The snippets of CONTRIBUTING.md run as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest


def test_snippets_run(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) >= 3
    module = ModuleType("contributing")
    monkeypatch.setitem(sys.modules, "contributing", module)  # dataclasses look for the module of their class
    for snippet in snippets:
        exec(compile(snippet, "CONTRIBUTING.md", "exec", dont_inherit=True), module.__dict__)
