"""idx files, MNIST and its writers."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfw.data import MissingDataError, load_data, partition
from fedfw.data.idx import read_idx
from tests.data.files import DATA, Array, idx_bytes, images, labels, needs, write_gz, write_mnist

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_gives_back_what_was_written(tmp_path: Path, dtype: type, packed: bool) -> None:
    array: Array = (
        np.arange(-12 if dtype is np.int32 else 0, 12 if dtype is np.int32 else 24).astype(dtype).reshape(2, 3, 4)
    )
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


def test_images_stay_bytes_until_they_are_taken(tmp_path: Path) -> None:
    write_mnist(tmp_path / "fashion-mnist")
    data = load_data("fashion-mnist", tmp_path)
    assert (data.name, data.classes, data.shape) == ("fashion-mnist", 10, (1, 28, 28))
    assert data.train.inputs.dtype == torch.uint8
    assert np.array_equal(data.train.inputs[:, 0].numpy(), images(20))
    assert (len(data.train), len(data.test)) == (20, 10)
    rows = torch.tensor([7, 3])
    inputs, targets = data.train.take(rows)
    assert inputs.dtype == torch.float32
    assert targets.tolist() == [7, 3]
    assert torch.equal(inputs, data.train.inputs[rows] / 255)
    assert torch.equal(data.test.take()[0][:1], data.test.take(torch.tensor([0]))[0])
    assert data.train.inputs.dtype == torch.uint8  # taking changes nothing


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
def test_files_that_do_not_fit_are_named(tmp_path: Path, file: str, array: Array, message: str) -> None:
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
    write_qmnist(tmp_path, qmnist_table(20), qmnist_table(10, more=50))
    data = load_data("mnist", tmp_path)
    assert data.train.owners["writer"].tolist() == [2000 + i // 4 for i in range(20)]
    assert data.test.owners["writer"].tolist() == [2000 + i // 4 for i in range(10)]
    parts = partition("writer", data.train, 5, 10, seed=0)
    assert [part.tolist() for part in parts] == [list(range(4 * i, 4 * i + 4)) for i in range(5)]


@pytest.mark.parametrize("change", ["class", "rows", "columns"])
def test_writers_of_other_digits_are_refused(tmp_path: Path, change: str) -> None:
    write_mnist(tmp_path / "mnist")
    table = qmnist_table(20)
    table[3, 0] += change == "class"
    write_qmnist(tmp_path, table[: 19 if change == "rows" else 20, : 2 if change == "columns" else 8], qmnist_table(10))
    with pytest.raises(ValueError, match=r"qmnist-train-labels-idx2-int\.gz"):
        load_data("mnist", tmp_path)


def test_without_qmnist_only_the_writer_partition_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    data = load_data("mnist", tmp_path)
    assert len(partition("iid", data.train, 4, 10, seed=0)) == 4
    with pytest.raises(MissingDataError, match=f"fedfw data get qmnist-labels --data-dir {tmp_path}"):
        partition("writer", data.train, 4, 10, seed=0)


@needs("mnist")
def test_the_real_mnist() -> None:
    data = load_data("mnist", DATA)
    assert data.train.inputs.shape == (60_000, 1, 28, 28)
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.targets.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test.targets[:5].tolist() == [7, 2, 1, 0, 4]
    assert float(data.train.inputs.float().mean() / 255) == pytest.approx(0.1307, abs=1e-4)


@needs("mnist", "qmnist-labels")
def test_the_real_writers() -> None:
    data = load_data("mnist", DATA)
    train, test = (set(part.owners["writer"].tolist()) for part in (data.train, data.test))
    assert len(train) == 539
    assert len(test) == 297
    assert not train & test
    everyone = partition("writer", data.train, 539, 10, seed=0)
    assert all(len(set(data.train.owners["writer"][part].tolist())) == 1 for part in everyone)
    sizes = [len(part) for part in partition("writer", data.train, 100, 10, seed=0)]
    assert sum(sizes) == 60_000
    assert max(sizes) - min(sizes) < 131  # the largest writer's digits
