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


@pytest.mark.parametrize("width", [20, 33, 50, 79])
def test_a_table_is_no_wider_than_asked_and_loses_no_word(width: int) -> None:
    text = aligned(ROWS, width=width)
    assert max(map(len, text.splitlines())) <= width
    for word in " ".join(cell for row in ROWS for cell in row).split():
        assert word in text.split()


def test_every_block_begins_with_the_first_column() -> None:
    blocks = aligned(ROWS, width=33).split("\n\n")
    assert len(blocks) > 1
    assert all(block.startswith("name ") for block in blocks)


def test_words_longer_than_the_width_are_broken() -> None:
    text = aligned([("x" * 50, "y" * 50)], width=40)
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("x") == text.count("y") == 50
