"""One report in two forms: nothing lost, nothing to be fetched, nothing taken for markup."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure

from fedfw.report.document import Document, csv_text
from fedfw.report.html import save_html
from fedfw.report.markdown import save_markdown


def document() -> Document:
    page = Document("Title <b>")
    page.heading("One & two")
    page.text("a < b")
    page.table(("name", "value"), [("x|y", ("1.5", "good")), ("<i>", ("-2", "bad"))])
    for name in ("first", "second"):
        figure = Figure()
        figure.subplots().plot([0, 1], [1, 0])
        page.plot(figure, f"the {name}", csv_text(("t", "y"), [(0, 1), (1, 0)]), name)
    page.attachment("notes.txt", "notes", "a, b")
    page.footer(["made today"])
    return page


def test_html_is_self_contained(tmp_path: Path) -> None:
    save_html(document(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == text.count("<figure>") == 2
    assert "<h1>Title &lt;b&gt;</h1>" in text
    assert '<td class="good number">1.5</td>' in text
    assert '<td class="plain">&lt;i&gt;</td>' in text
    fetched = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(link.startswith(("data:", "#")) for link in fetched)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))  # plots do not share clip paths
    assert {link[1:] for link in fetched if link.startswith("#")} <= set(ids)


def test_what_stands_between_backticks_is_code(tmp_path: Path) -> None:
    page = Document("The `title`")
    page.heading("A `heading`")
    page.text("made by `fedfw run --rounds <5>`, alone")
    page.table(("`name`",), [("`x`",)])
    page.attachment("notes.txt", "notes", "a `tick` in a file stays")
    page.footer(["`end`"])
    save_html(page, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "made by <code>fedfw run --rounds &lt;5&gt;</code>, alone" in text
    assert "`" not in text.replace("<title>The `title`</title>", "")


def test_a_page_follows_the_readers_colours_and_width(tmp_path: Path) -> None:
    save_html(document(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "prefers-color-scheme: dark" in text
    assert '<meta name="viewport" content="width=device-width' in text
    light, dark = (set(re.findall(r"(--\w+): #", part)) for part in text.split("@media (prefers-color-scheme")[:2])
    assert light == dark == set(re.findall(r"var\((--\w+)\)", text))  # every colour has both


def test_markdown_has_its_plots_beside_it(tmp_path: Path) -> None:
    save_markdown(document(), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| x\\|y | **1.5** |" in text
    assert "| &lt;i> | -2 |" in text
    assert "a &lt; b" in text
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / link).is_file()
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"first.svg", "second.svg"}


def test_csv_keeps_six_digits() -> None:
    assert csv_text(("t", "y"), [(1, 0.123456789), (2, None)]).split() == ["t,y", "1,0.123457", "2,"]


def test_the_same_report_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_html(document(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
