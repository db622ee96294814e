"""Images of classes: MNIST and its relatives as idx files, EMNIST as .mat files, and CIFAR-10 as
binary records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.data.archives import open_packed
from fedfw.data.base import Data, Part, Request, class_numbers
from fedfw.data.folder import MissingDataError, find_files
from fedfw.data.limits import check_memory, read_isolated
from fedfw.data.sources import QMNIST_FILES

Array = npt.NDArray[Any]
_KINDS: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}
_RECORD = 1 + 3 * 32 * 32  # bytes of a record of CIFAR-10: a label, then red, green and blue


# --- the idx format, which no dependency reads ---


def read_idx(path: Path, axes: int) -> Array:
    """Read an array of bytes or of 32-bit integers from an idx file, gzipped or not.

    A damaged file, one without ``axes`` axes, or one that promises more bytes than its reader may
    hold is a ValueError. No more is inflated than the head promises.
    """
    with open_packed(path) as stream:
        head = stream.read(4)
        # The head is two zeros, a code of the type, and the number of axes.
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _KINDS:
            start = head.hex() or "nothing"
            raise ValueError(
                f"{path} is no idx file of bytes or 32-bit integers: it starts with {start}"
            )
        if head[3] != axes:
            raise ValueError(f"{path} has {head[3]} axes, expected {axes}")
        kind = _KINDS[head[2]]
        # A side has 4 bytes; missing ones become zeros, which make the size 0, refused below.
        sides = np.frombuffer(stream.read(4 * axes).ljust(4 * axes, b"\0"), ">u4")
        shape = tuple(sides.tolist())
        size = prod(shape) * kind.itemsize
        if not size:
            raise ValueError(
                f"{path} is damaged: it promises {size} bytes of shape {shape}, expected at least 1"
            )
        # What is read is copied, so that the array can be written to.
        check_memory(path, 2 * size, f"an array of shape {shape}")
        data = bytearray(stream.read(size))
        if len(data) < size or stream.read(1):  # one byte more shows that a file goes on
            many = len(data) if len(data) < size else "more"
            raise ValueError(f"{path} is damaged: {many} bytes, expected {size} of shape {shape}")
    return np.frombuffer(data, kind).reshape(shape)


def read_idx_part(images: Path, labels: Path, classes: int) -> Part:
    """Return the part in two idx files: inputs (samples, 1, 28, 28) uint8 as they are stored, and
    targets (samples,).
    """
    pixels = read_idx(images, axes=3)
    digits = read_idx(labels, axes=1)
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (28, 28):
        raise ValueError(
            f"{images} has {pixels.dtype} images of {pixels.shape[1:]}, expected bytes of (28, 28)"
        )
    if len(pixels) != len(digits):
        raise ValueError(
            f"{images} has {len(pixels)} images, but {labels} has {len(digits)} labels"
        )
    targets = class_numbers(torch.from_numpy(digits.astype(np.int64)), classes, labels)
    return Part(torch.from_numpy(pixels)[:, None], targets)


# --- MNIST and Fashion-MNIST: the writers of MNIST's digits come from QMNIST's label files ---


def load_idx_images(request: Request) -> Data:
    """Load ten classes of 28 x 28 bytes from files in the order of ``IDX_FILES``."""
    train_images, train_labels, test_images, test_labels = request.files
    train = read_idx_part(train_images, train_labels, 10)
    return Data(request.name, train, read_idx_part(test_images, test_labels, 10), 10)


def load_mnist(request: Request) -> Data:
    """Load MNIST, with the writers of its digits where QMNIST's label files are at hand."""
    data = load_idx_images(request)
    try:
        files = find_files("qmnist-labels", "qmnist-labels", (QMNIST_FILES,), request.data_dir)
    except MissingDataError as error:
        train = replace(data.train, owners_hint=str(error))
        test = replace(data.test, owners_hint=str(error))
    else:
        train = _with_writers(data.train, files[0])
        test = _with_writers(data.test, files[1])
    return replace(data, train=train, test=test)


def _with_writers(part: Part, path: Path) -> Part:
    """Return a part with the writers of a QMNIST table: column 0 is the class, which must agree,
    and column 2 the writer, whose number is unique across NIST's series.

    The test table goes on after MNIST's 10,000 digits with the 50,000 that QMNIST found again.
    """
    table = read_idx(path, axes=2)
    if table.shape[1] < 3:
        raise ValueError(f"{path} has {table.shape[1]} columns, expected class, series and writer")
    rows = torch.from_numpy(table[: len(part), :3].astype(np.int64))
    if not torch.equal(rows[:, 0], part.targets):
        raise ValueError(f"{path} is not about these digits: its classes are not MNIST's labels")
    return replace(part, owners={"writer": rows[:, 2].clone()})


# --- EMNIST: the publisher's .mat files, which name the writers ---


def load_emnist(request: Request, classes: int) -> Data:
    """Load one split."""
    return Data(request.name, *read_parts(request.files[0], classes), classes)


def read_parts(path: Path, classes: int) -> tuple[Part, Part]:
    """Return the training and the test part of a .mat file, with the writers."""
    names = [
        f"dataset.{part}.{field}"
        for part in ("train", "test")
        for field in ("images", "labels", "writers")
    ]
    arrays = list(read_isolated("mat", path, *names).values())
    return _part(arrays[:3], classes, path), _part(arrays[3:], classes, path)


def _part(arrays: Sequence[Array], classes: int, path: Path) -> Part:
    """Return a part of the data from its images, labels and writers."""
    images, labels, writers = arrays
    samples = len(images)
    if images.dtype != np.uint8 or images.shape != (samples, 28 * 28) or not samples:
        raise ValueError(
            f"{path} has {images.dtype} images of shape {images.shape}, expected bytes (samples, "
            "784)"
        )
    # One copy in all: the file's array is column-major, so its transpose (28 columns, 28 rows,
    # samples) is a view.
    upright = np.ascontiguousarray(images.T.reshape(28, 28, samples).transpose(2, 1, 0))
    targets = class_numbers(_whole_numbers(labels, samples, "labels", path), classes, path)
    owners = {"writer": _whole_numbers(writers, samples, "writers", path)}
    return Part(torch.from_numpy(upright)[:, None], targets, owners)


def _whole_numbers(values: Array, samples: int, name: str, path: Path) -> Tensor:
    """Return numbers of a MATLAB file as int64; refuses any that float64 may have rounded."""
    whole = (values >= 0) & (values < 2**53) & (values == np.floor(values))
    if values.size != samples or not whole.all():
        raise ValueError(
            f"{path} is damaged: {values.size} {name} of {values.dtype}, expected {samples} whole "
            "numbers"
        )
    return torch.from_numpy(values.reshape(-1).astype(np.int64))


# --- CIFAR-10 ---


def load_cifar10(request: Request) -> Data:
    """Load 50,000 + 10,000 images from files in the order of ``CIFAR10_FILES``."""
    *train, test = request.files
    return Data(request.name, read_batches(train, 10_000), read_batches([test], 10_000), 10)


def read_batches(paths: Sequence[Path], records: int) -> Part:
    """Read files of ``records`` records each: inputs (samples, 3, 32, 32) uint8, targets
    (samples,).
    """
    inputs = []
    targets = []
    for path in paths:
        size = path.stat().st_size
        if size != records * _RECORD:
            raise ValueError(
                f"{path} is damaged: {size} bytes, expected {records} records of {_RECORD}"
            )
        batch = torch.from_numpy(np.fromfile(path, np.uint8).reshape(records, _RECORD))
        targets.append(class_numbers(batch[:, 0], 10, path))
        inputs.append(batch[:, 1:].reshape(records, 3, 32, 32))
    return Part(torch.cat(inputs), torch.cat(targets))
