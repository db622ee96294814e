"""One report in two forms: nothing lost, nothing to be fetched, nothing taken for markup."""

import re
from pathlib import Path

from matplotlib.figure import Figure

from fedfw_reproduction.document import Document, csv_text


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
    document().save_html(tmp_path / "page.html")
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


def test_markdown_has_its_plots_beside_it(tmp_path: Path) -> None:
    document().save_markdown(tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| x\\|y | **1.5** |" in text
    assert "| &lt;i> | -2 |" in text
    assert "a &lt; b" in text
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / link).is_file()
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"first.svg", "second.svg"}
