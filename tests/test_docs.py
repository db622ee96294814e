"""The documentation site has every page and every public name, and the paper stands where people look for it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import fedfw
from fedfw.atoms.quantised import BLOCK

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DOI = "10.1007/978-3-031-70352-2_4"


def test_every_page_stands_in_one_table_of_contents() -> None:
    found: list[str] = []
    for page in DOCS.glob("*.md"):
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
            entries = [line.strip() for line in tree.splitlines() if line.strip() and not line.startswith(":")]
            found += [re.sub(r".*<(.*)>", r"\1", entry) for entry in entries]
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"} | {"gallery/index", "api/index"}
    assert sorted(found) == sorted(pages)


def test_the_reference_has_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("sphinx_gallery")
    space = {"__file__": str(tmp_path / "conf.py")}  # it writes beside itself
    exec(compile((DOCS / "conf.py").read_text(), "conf.py", "exec"), space)
    listed = set(re.findall(r"^   (fedfw\.\S+)$", (tmp_path / "api" / "index.rst").read_text(), re.MULTILINE))
    modules = {"contrib", "optim", "testing"}
    assert {f"fedfw.{name}" for name in fedfw.__all__ if name not in modules | {"__version__"}} <= listed
    assert {"fedfw.optim.LMO", "fedfw.testing.check_constraint", "fedfw.algorithms.contrib.FedMuon"} <= listed


def test_every_example_has_a_title_for_the_gallery() -> None:
    for script in (ROOT / "examples").glob("*.py"):
        text = ast.get_docstring(ast.parse(script.read_text())) or ""
        assert re.match(r"(.+)\n=+\n\n", text), script.name
        assert len(text.splitlines()[0]) == len(text.splitlines()[1])


def test_the_paper_is_cited_on_top_of_readme_and_site_and_in_the_citation_file() -> None:
    for page in ("README.md", "docs/index.md"):
        assert DOI in (ROOT / page).read_text()[:2500]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = citation["references"][0]
    assert paper["doi"] == DOI
    assert [author["family-names"] for author in paper["authors"]] == ["Dadras", "Banerjee", "Prakhya", "Yurtsever"]
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]


def test_templates_of_issues_are_forms() -> None:
    templates = list((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert templates
    for template in templates:
        form = yaml.safe_load(template.read_text())
        assert form["name"]
        assert form["description"]
        ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        assert ids
        assert len(set(ids)) == len(ids)


def test_the_page_of_sets_says_how_long_blocks_are() -> None:
    assert f"Blocks have {BLOCK} numbers" in (DOCS / "sets.md").read_text()
