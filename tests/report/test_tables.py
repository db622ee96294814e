"""Tables keep every cell and fit a width."""

import pytest

from fedfw.report.tables import aligned

ROWS = [
    ("name", "a column of words", "count", "another column of words", "last"),
    ("one", "some words that are wrapped", "1,234", "other words that are wrapped", "end"),
    ("two", "-", "5", "", "-"),
]


def test_a_table_that_fits_has_a_line_for_each_row() -> None:
    lines = aligned(ROWS, right=(2,)).splitlines()
    assert len(lines) == len(ROWS)
    assert lines[1].index("1,234") + len("1,234") == lines[2].index("5") + 1


@pytest.mark.parametrize(
    ("width", "whole_words"), [(9, False), (20, False), (50, True), (79, True)]
)
def test_a_table_is_no_wider_than_asked_and_loses_no_letter(width: int, whole_words: bool) -> None:
    text = aligned(ROWS, width=width)
    assert max(map(len, text.splitlines())) <= max(width, 13)  # 13: a letter a column
    cells = " ".join(cell for row in ROWS for cell in row).split()
    assert sorted("".join(text.split())) == sorted("".join(cells))
    assert not whole_words or set(cells) <= set(text.split())
