"""The pages run as written: Python blocks print the text that follows them, and fedfw's commands work."""

from __future__ import annotations

import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from tests.processes import run_python

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|text|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of every block of a page, in order."""
    return BLOCK.findall((ROOT / page).read_text())


@pytest.mark.parametrize(
    "page",
    [
        "CONTRIBUTING.md",
        *(f"docs/{page}.md" for page in ("getting-started", "problems", "sets", "certificates", "faq")),
    ],
)
def test_python_runs_and_prints_what_the_page_says(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # dataclasses look for the module of their class
    said = ""
    ran = 0
    for language, text in blocks(page):
        if language == "python":
            out = io.StringIO()
            with redirect_stdout(out):
                exec(compile(text, page, "exec", dont_inherit=True), module.__dict__)
            said, ran = out.getvalue(), ran + 1
        elif language == "text":
            assert said == text
    assert ran


def test_commands_of_getting_started_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shell = "".join(text for language, text in blocks("docs/getting-started.md") if language == "bash")
    commands = [shlex.split(line, comments=True) for line in shell.splitlines() if line.startswith("fedfw ")]
    assert commands
    for _, *arguments in commands:
        run_python(["-m", "fedfw", *arguments])
    assert (tmp_path / "first" / "model.pt").exists()


def test_what_contributing_runs_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    files = re.findall(r"(?:bash|python3) ([\w./-]+)", text)
    modules = re.findall(r"-m (fedfw_reproduction.bench[\w.]*)", text)
    assert files
    assert modules
    assert all((ROOT / file).is_file() for file in files)
    assert all(find_spec(module) is not None for module in modules)
