"""Ratings without their means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedfw.data import load_data, partition
from fedfw.data.movielens import read_ratings, without_means
from tests.data.files import DATA, needs

LINES = ["1\t1\t5\t881250949", "1\t2\t3\t881250949", "2\t1\t4\t881250949", "3\t3\t1\t881250949"]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_ids_count_from_zero(tmp_path: Path) -> None:
    table = read_ratings(write(tmp_path / "u.data", LINES), 3, 3, 4)
    assert table.tolist() == [[0, 0, 5], [0, 1, 3], [1, 0, 4], [2, 2, 1]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (LINES[:3], "3 lines of 4, expected 4 of 4 numbers"),
        ([*LINES[:3], "3\t3\t1"], "is damaged"),
        ([*LINES[:3], "3\t3\tone\t881250949"], "is damaged"),
        ([*LINES[:3], "4\t3\t1\t881250949"], r"user 4 in line 4, expected 1 \.\. 3"),
        (["0\t3\t1\t881250949", *LINES[:3]], r"user 0 in line 1, expected 1 \.\. 3"),
        ([LINES[0], "3\t9\t1\t881250949", *LINES[1:3]], r"item 9 in line 2, expected 1 \.\. 3"),
        ([*LINES[:3], "3\t3\t6\t881250949"], r"rating 6 in line 4, expected 1 \.\. 5"),
        ([*LINES[:3], LINES[0]], "rates an item twice"),
        ([line.replace("\t", ",") for line in LINES], "is damaged"),
    ],
)
def test_damage_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_ratings(write(tmp_path / "u.data", lines), 3, 3, 4)
    assert "u.data" in str(caught.value)


def test_means_are_those_of_the_training_rows() -> None:
    table = np.array([[0, 0, 5], [0, 1, 3], [1, 0, 2], [2, 0, 4], [1, 2, 1]])
    train = np.array([True, True, True, False, False])
    # user 0: 4, user 1: 2, user 2 unseen: 10/3; then item 0: (1 + 0) / 2, item 1: -1, item 2 unseen: 0
    assert without_means(table, train, 3, 3) == pytest.approx([0.5, 0, -0.5, 4 - 10 / 3 - 0.5, -1])


@needs("ml-100k")
def test_the_real_ratings() -> None:
    data = load_data("ml-100k", DATA)
    assert (data.classes, data.sides, len(data.train), len(data.test)) == (None, (943, 1682), 80_000, 20_000)
    for part in (data.train, data.test):
        assert torch.equal(part.owners["user"], part.inputs[:, 0])
    both = torch.cat([data.train.inputs, data.test.inputs])
    assert len(set(map(tuple, both.tolist()))) == 100_000
    by_item = torch.zeros(1682).index_add_(0, data.train.inputs[:, 1], data.train.targets)
    assert float(by_item.abs().max()) < 1e-3  # items' means are gone
    assert len(partition("user", data.train, 943, None, seed=0)) == 943
    with pytest.raises(ValueError, match="goes by classes, but the targets are numbers"):
        partition("labels:3", data.train, 10, None, seed=0)
    again, other = load_data("ml-100k", DATA), load_data("ml-100k", DATA, seed=1)
    assert torch.equal(again.test.inputs, data.test.inputs)
    assert not torch.equal(other.test.inputs, data.test.inputs)


@needs("ml-100k")
def test_the_means_alone_predict_as_well_as_is_known() -> None:
    """0.960 over many splits, with a deviation of 0.005 between splits; seed 0 is a good one."""
    errors = [float(load_data("ml-100k", DATA, seed=s).test.targets.square().mean().sqrt()) for s in range(8)]
    assert 0.947 <= errors[0] <= 0.957
    assert sum(errors) / 8 == pytest.approx(0.960, abs=0.006)
    assert max(errors) - min(errors) < 0.03
