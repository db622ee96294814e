"""idx files, MNIST and its writers, EMNIST's .mat files and CIFAR-10's records."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from fedfw.data import MissingDataError, load_data, partition
from fedfw.data.images import read_batches, read_idx
from tests.data.files import Array, idx_bytes, images, labels, write_gz, write_mnist

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_gives_back_what_was_written(tmp_path: Path, dtype: type, packed: bool) -> None:
    array: Array = np.arange(-12, 12).astype(dtype).reshape(2, 3, 4)
    data = idx_bytes(array)
    path = tmp_path / "array.idx"
    path.write_bytes(gzip.compress(data) if packed else data)
    assert np.array_equal(read_idx(path, axes=3), array)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "is damaged: "),
        (lambda data: data + b"\0", "is damaged: "),
        (lambda data: data[:9], "is damaged: "),
        (lambda data: b"\0\0\x0d" + data[3:], "is no idx file"),
        (lambda data: b"\1" + data[1:], "is no idx file"),
        (lambda data: b"", "is no idx file"),
        (lambda data: data[:3] + b"\3" + data[4:], "has 3 axes, expected 2"),
        (lambda data: gzip.compress(data)[:-9], "is damaged: "),
        (lambda data: gzip.compress(data)[:5], "is damaged: "),
        (lambda data: gzip.compress(data)[:-8] + bytes(8), "is damaged: "),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "array.idx"
    path.write_bytes(change(idx_bytes(np.ones((5, 7), np.uint8))))  # type: ignore[operator]
    with pytest.raises(ValueError, match=message) as caught:
        read_idx(path, axes=2)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        (TRAIN_LABELS, labels(19), "has 20 images, but"),
        (TRAIN_LABELS, labels(20) + np.uint8(1), "labels 1 .. 10, expected 0 .. 9"),
        (TRAIN_LABELS, labels(20)[:, None], "has 2 axes, expected 1"),
        (TRAIN_IMAGES, images(20)[:, :27], "expected bytes of"),
        (TRAIN_IMAGES, images(20).astype(np.int32), "expected bytes of"),
    ],
)
def test_files_that_do_not_fit_are_named(
    tmp_path: Path, file: str, array: Array, message: str
) -> None:
    write_mnist(tmp_path / "mnist")
    write_gz(tmp_path / "mnist" / file, idx_bytes(array))
    with pytest.raises(ValueError, match=message) as caught:
        load_data("mnist", tmp_path)
    assert file in str(caught.value)


def qmnist_table(samples: int, more: int = 0) -> Array:
    table = np.zeros((samples + more, 8), np.int32)
    table[:, 0] = labels(samples + more)
    table[:, 2] = 2000 + np.arange(samples + more) // 4
    return table


def write_qmnist(folder: Path, train: Array, test: Array) -> None:
    write_gz(folder / "qmnist-labels" / "qmnist-train-labels-idx2-int.gz", idx_bytes(train))
    write_gz(folder / "qmnist-labels" / "qmnist-test-labels-idx2-int.gz", idx_bytes(test))


def test_writers_come_from_qmnist(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    with pytest.raises(MissingDataError, match="get it with: fedfw data get qmnist-labels --data-"):
        partition("writer", load_data("mnist", tmp_path).train, 5, 10, seed=0)
    write_qmnist(tmp_path, qmnist_table(20), qmnist_table(10, more=50))
    data = load_data("mnist", tmp_path)
    assert data.train.owners["writer"].tolist() == [2000 + i // 4 for i in range(20)]
    assert data.test.owners["writer"].tolist() == [2000 + i // 4 for i in range(10)]
    parts = partition("writer", data.train, 5, 10, seed=0)
    assert [part.tolist() for part in parts] == [list(range(4 * i, 4 * i + 4)) for i in range(5)]
    for table, message in (
        (qmnist_table(20)[::-1], "its classes are not MNIST's labels"),
        (qmnist_table(19), "its classes are not MNIST's labels"),
        (qmnist_table(20)[:, :2], "2 columns, expected class, series and writer"),
    ):
        write_qmnist(tmp_path, table, qmnist_table(10))
        with pytest.raises(ValueError, match=message):
            load_data("mnist", tmp_path)


# --- EMNIST: upright images and writers ---


def upright(samples: int) -> Array:
    """Image i has a horizontal bar in row i, from the left edge to the middle."""
    pictures = np.zeros((samples, 28, 28), np.uint8)
    for i, picture in enumerate(pictures):
        picture[i % 28, :14] = 200 + i
    return pictures


def as_stored(pictures: Array) -> Array:
    """Column by column, as the files have them."""
    return pictures.transpose(0, 2, 1)


def mat_part(samples: int, classes: int = 47) -> dict[str, Any]:
    return {
        "images": np.asfortranarray(as_stored(upright(samples)).reshape(samples, 784)),
        "labels": labels(samples, classes)[:, None],
        "writers": (np.arange(samples) // 3 + 100).astype(np.uint16)[:, None],
    }


def write_mat(path: Path, train: dict[str, Any], test: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(
        path,
        {"dataset": {"train": train, "test": test, "mapping": np.zeros((47, 2))}},
        do_compression=True,
    )


@pytest.mark.parametrize("inner", ["", "matlab"])
def test_mat_files(tmp_path: Path, inner: str) -> None:
    write_mat(tmp_path / "emnist" / inner / "emnist-balanced.mat", mat_part(9), mat_part(6))
    data = load_data("emnist-balanced", tmp_path)
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (47, (1, 28, 28), 9, 6)
    assert np.array_equal(data.train.inputs[:, 0].numpy(), upright(9))
    assert data.train.targets.tolist() == list(range(9))
    assert data.train.owners["writer"].tolist() == [100] * 3 + [101] * 3 + [102] * 3


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"writers": None}, "expected an array dataset.train.writers"),
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


# --- CIFAR-10's binary records ---


def batch(path: Path, labels: list[int], seed: int) -> Array:
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 32, 32), np.uint8)
    path.write_bytes(
        b"".join(
            bytes([label]) + image.tobytes() for label, image in zip(labels, pixels, strict=True)
        )
    )
    return pixels


def test_records_become_images_in_the_order_of_the_files(tmp_path: Path) -> None:
    paths = [tmp_path / "one.bin", tmp_path / "two.bin"]
    pixels = [batch(paths[0], [3, 9], 0), batch(paths[1], [0, 5], 1)]
    part = read_batches(paths, 2)
    assert part.inputs.dtype == torch.uint8
    assert np.array_equal(part.inputs.numpy(), np.concatenate(pixels))
    assert part.targets.tolist() == [3, 9, 0, 5]
