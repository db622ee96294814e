"""EMNIST in both of its layouts: upright images and writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from fedfw.data import MissingDataError, load_data, partition
from tests.data.files import DATA, Array, idx_bytes, labels, needs, write_gz


def upright(samples: int) -> Array:
    """Image i has a horizontal bar in row i, from the left edge to the middle."""
    pictures = np.zeros((samples, 28, 28), np.uint8)
    for i, picture in enumerate(pictures):
        picture[i % 28, :14] = 200 + i
    return pictures


def as_stored(pictures: Array) -> Array:
    """Column by column, as both layouts have them."""
    return pictures.transpose(0, 2, 1)


def mat_part(samples: int, classes: int = 47) -> dict[str, Any]:
    return {
        "images": np.asfortranarray(as_stored(upright(samples)).reshape(samples, 784)),
        "labels": labels(samples, classes)[:, None],
        "writers": (np.arange(samples) // 3 + 100).astype(np.uint16)[:, None],
    }


def write_mat(path: Path, train: dict[str, Any], test: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"dataset": {"train": train, "test": test, "mapping": np.zeros((47, 2))}}, do_compression=True)


def write_idx(folder: Path, split: str) -> None:
    for part, samples in (("train", 9), ("test", 6)):
        write_gz(folder / f"emnist-{split}-{part}-images-idx3-ubyte.gz", idx_bytes(as_stored(upright(samples))))
        write_gz(folder / f"emnist-{split}-{part}-labels-idx1-ubyte.gz", idx_bytes(labels(samples)))


@pytest.mark.parametrize("inner", ["", "matlab"])
def test_mat_files(tmp_path: Path, inner: str) -> None:
    write_mat(tmp_path / "emnist" / inner / "emnist-balanced.mat", mat_part(9), mat_part(6))
    data = load_data("emnist-balanced", tmp_path)
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (47, (1, 28, 28), 9, 6)
    assert np.array_equal(data.train.inputs[:, 0].numpy(), upright(9))
    assert data.train.targets.tolist() == list(range(9))
    assert data.train.owners["writer"].tolist() == [100] * 3 + [101] * 3 + [102] * 3


@pytest.mark.parametrize("inner", ["", "gzip"])
@pytest.mark.parametrize(("split", "classes"), [("digits", 10), ("byclass", 62)])
def test_idx_files(tmp_path: Path, inner: str, split: str, classes: int) -> None:
    write_idx(tmp_path / "emnist" / inner, split)
    data = load_data(f"emnist-{split}", tmp_path)
    assert data.classes == classes
    assert np.array_equal(data.test.inputs[:, 0].numpy(), upright(6))
    with pytest.raises(MissingDataError, match=rf"\.mat file; get it with: fedfw data get emnist-{split} --data-dir"):
        partition("writer", data.train, 3, classes, seed=0)


def test_mat_is_preferred(tmp_path: Path) -> None:
    write_idx(tmp_path / "emnist" / "gzip", "digits")
    write_mat(tmp_path / "emnist" / "matlab" / "emnist-digits.mat", mat_part(3, 10), mat_part(1, 10))
    data = load_data("emnist-digits", tmp_path)
    assert "writer" in data.train.owners
    assert (len(data.train), len(data.test)) == (3, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"writers": None}, "expected images, labels and writers in dataset.train"),
        ({"labels": np.arange(8)[:, None]}, "8 labels of int64, expected 9 whole numbers"),
        ({"labels": np.full((9, 1), 47)}, "labels 47 .. 47, expected 0 .. 46"),
        ({"labels": np.full((9, 1), 0.5)}, "expected 9 whole numbers"),
        ({"labels": np.full((9, 1), np.nan)}, "expected 9 whole numbers"),
        ({"images": np.zeros((9, 783), np.uint8)}, "images of shape"),
        ({"images": np.zeros((9, 784))}, "float64 images"),
    ],
)
def test_fields_that_do_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    train = {name: value for name, value in (mat_part(9) | change).items() if value is not None}
    path = tmp_path / "emnist" / "emnist-balanced.mat"
    write_mat(path, train, mat_part(6))
    with pytest.raises(ValueError, match=message) as caught:
        load_data("emnist-balanced", tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kept", [0, 3, 100, 200, 400])
def test_a_mat_file_cut_off(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "emnist" / "emnist-balanced.mat"
    write_mat(path, mat_part(9), mat_part(6))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"emnist-balanced\.mat"):
        load_data("emnist-balanced", tmp_path)


@pytest.mark.parametrize("content", [{"other": np.ones(3)}, {"dataset": np.ones(3)}, {"dataset": {"train": 1.0}}])
def test_other_mat_files(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "emnist-small" / "emnist-balanced-small.mat"
    path.parent.mkdir()
    savemat(path, content)
    with pytest.raises(ValueError, match=r"is no EMNIST file|has no variable 'dataset'"):
        load_data("emnist-small", tmp_path)


@needs("emnist-small")
def test_the_real_piece_stands_upright() -> None:
    data = load_data("emnist-small", DATA)
    assert (data.classes, len(data.train), len(data.test)) == (47, 2000, 2000)
    assert len(set(data.train.owners["writer"].tolist())) == 1491
    pixels = data.train.take()[0][:, 0]
    place = torch.arange(28.0)

    def spread(label: int, axis: int) -> float:
        """Deviation of the ink's place along an axis (1: from top to bottom) in the mean image of a class."""
        ink = pixels[data.train.targets == label].mean(0).sum(2 - axis)
        ink = ink / ink.sum()
        return float((ink @ place**2 - (ink @ place) ** 2).sqrt())

    one, letter_l, seven, letter_t = 1, 21, 7, 29
    assert spread(one, 1) > 1.5 * spread(one, 2)  # taller than wide
    assert spread(letter_l, 1) > spread(letter_l, 2)
    for label, sign in ((letter_l, 1), (seven, -1), (letter_t, -1)):
        ink = pixels[data.train.targets == label].mean(0)
        width = (ink > 0.25 * ink.max()).sum(1).float()  # of each row
        assert sign * float(width[18:25].max() - width[3:10].max()) > 0  # L stands on its bar, 7 and T carry theirs
