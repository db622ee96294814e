"""What an owner is told that choices reveal is what the leakage study found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedfw.deployment.reveals import (
    GUESS,
    LEAKS,
    SAMPLES,
    Leak,
    leak_table,
    promise_sentence,
    samples_sentence,
)

DOCS = Path(__file__).parents[2] / "docs"
STUDY = (DOCS / "privacy-study.md").read_text()


def rows(title: str) -> dict[str, list[str]]:
    """The rows of the study's table under a heading, by their first cells; the first of each name counts."""
    table = STUDY.partition(f"### {title}")[2].partition("\n### ")[0]
    found: dict[str, list[str]] = {}
    for line in table.splitlines():
        if line.startswith("| "):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(name, cells)
    return found


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.shared)
def test_the_numbers_are_the_studys(leak: Leak) -> None:
    search, closed = leak.names
    cells = rows("Every set, one image a client")[search]
    assert cells[2].startswith(f"{leak.psnr} (")
    assert cells[3] == f"{leak.recovered} %"
    assert cells[7] == str(GUESS)  # of the public image that is nearest
    cosine = rows("Closed forms: softmax regression")[closed][1]
    assert cosine == ("none" if leak.cosine is None else f"{leak.cosine:.6f}")


def test_the_numbers_of_samples_are_the_studys() -> None:
    table = STUDY.partition("### Searches: samples a client")[2].partition("\n### ")[0]
    found = re.findall(r"^\| gradient \| [^|]+ \| \d+ x (\d+) \| ([0-9.]+) \(", table, re.M)
    assert tuple((int(count), float(psnr)) for count, psnr in found) == SAMPLES


def test_pages_show_the_table() -> None:
    page = (DOCS / "deployment.md").read_text()
    assert leak_table() in page
    for name in ("deployment.md", "privacy.md"):
        text = " ".join((DOCS / name).read_text().split())
        assert promise_sentence() in text
    assert samples_sentence() in " ".join(page.split())
