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
from fedfw.data.folder import MissingDataError, find_files, how_to_get
from fedfw.data.limits import MemoryMeter, read_isolated
from fedfw.data.sources import QMNIST_FILES

Array = npt.NDArray[Any]
_PIECE = 1 << 20  # bytes that are read at once
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
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _KINDS:
            found = head.hex() or "nothing"
            raise ValueError(
                f"{path} is no idx file of bytes or 32-bit integers: it starts with {found}"
            )
        if head[3] != axes:
            raise ValueError(f"{path} has {head[3]} axes, expected {axes}")
        kind = _KINDS[head[2]]
        sides = stream.read(4 * axes)
        shape = tuple(
            int.from_bytes(sides[start : start + 4], "big") for start in range(0, 4 * axes, 4)
        )
        size = prod(shape) * kind.itemsize
        if not size:
            raise ValueError(
                f"{path} is damaged: it promises {size} bytes of shape {shape}, expected at least 1"
            )
        MemoryMeter(path).hold(size, f"an array of shape {shape}")
        data = np.empty(size, np.uint8)
        read = 0
        while piece := stream.read(min(_PIECE, size - read)):
            data[read : read + len(piece)] = np.frombuffer(piece, np.uint8)
            read += len(piece)
        if read < size or stream.read(1):  # one byte more shows that a file goes on
            many = read if read < size else "more"
            raise ValueError(f"{path} is damaged: {many} bytes, expected {size} of shape {shape}")
    return data.view(kind).reshape(shape)


def read_idx_part(images: Path, labels: Path, classes: int) -> Part:
    """Return inputs (samples, 1, 28, 28) uint8 as they are stored, targets (samples,)."""
    pixels = read_idx(images, axes=3)
    marks = read_idx(labels, axes=1)
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (28, 28):
        raise ValueError(
            f"{images} has {pixels.dtype} images of {pixels.shape[1:]}, expected bytes of (28, 28)"
        )
    if len(pixels) != len(marks):
        raise ValueError(f"{images} has {len(pixels)} images, but {labels} has {len(marks)} labels")
    targets = class_numbers(torch.from_numpy(marks.astype(np.int64)), classes, labels)
    return Part(torch.from_numpy(pixels)[:, None], targets)


# --- MNIST and Fashion-MNIST: the writers of MNIST's digits come from QMNIST's label files ---


def load_idx_images(request: Request, classes: int = 10) -> Data:
    """Load classes of 28 x 28 bytes from files in the order of ``IDX_FILES``."""
    train_images, train_labels, test_images, test_labels = request.files
    train = read_idx_part(train_images, train_labels, classes)
    return Data(request.name, train, read_idx_part(test_images, test_labels, classes), classes)


def load_mnist(request: Request) -> Data:
    """Load MNIST, with owners where QMNIST's label files are at hand."""
    data = load_idx_images(request)
    try:
        files = find_files("qmnist-labels", "qmnist-labels", (QMNIST_FILES,), request.data_dir)
    except MissingDataError as error:
        train, test = (replace(part, owners_hint=str(error)) for part in (data.train, data.test))
    else:
        train, test = map(_with_writers, (data.train, data.test), files)
    return replace(data, train=train, test=test)


def _with_writers(part: Part, path: Path) -> Part:
    """Add the writers of a QMNIST table to a part: column 0 is the class, which must agree, and
    column 2 the writer (unique across NIST's series).

    The test table goes on after MNIST's 10,000 digits with the 50,000 that QMNIST found again.
    """
    table = read_idx(path, axes=2)
    if table.shape[1] < 3:
        raise ValueError(f"{path} has {table.shape[1]} columns, expected class, series and writer")
    rows: Tensor = torch.from_numpy(table[: len(part), :3].astype(np.int64))
    if not torch.equal(rows[:, 0], part.targets):
        raise ValueError(f"{path} is not about these digits: its classes are not MNIST's labels")
    return replace(part, owners={"writer": rows[:, 2].clone()})


# --- EMNIST: the publisher's .mat files, which name the writers, or idx files, which do not ---


def emnist_layouts(split: str) -> tuple[tuple[str, ...], ...]:
    """Return the files as they may lie in the folder, the better first: .mat or idx, unpacked with
    their folder or without.
    """
    idx = [
        f"emnist-{split}-{part}-{kind}-ubyte.gz"
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]
    mat = f"emnist-{split}.mat"
    return (mat,), (f"matlab/{mat}",), tuple(idx), tuple(f"gzip/{file}" for file in idx)


def load_emnist(request: Request, classes: int) -> Data:
    """Load one split from a .mat file or from four idx files."""
    if len(request.files) == 1:
        return Data(request.name, *read_parts(request.files[0], classes), classes)
    data = load_idx_images(request, classes)
    hint = f"the writers are in the .mat file; {how_to_get(request.name, request.data_dir)}"
    train, test = (
        replace(part, inputs=part.inputs.transpose(2, 3).contiguous(), owners_hint=hint)
        for part in (data.train, data.test)
    )
    return Data(request.name, train, test, classes)


def read_parts(path: Path, classes: int) -> tuple[Part, Part]:
    """Return the training and the test part of a .mat file, with the writers."""
    names = [
        f"dataset.{part}.{field}"
        for part in ("train", "test")
        for field in ("images", "labels", "writers")
    ]
    content = read_isolated("mat", path, *names)
    train, test = (_part(content, f"dataset.{part}", classes, path) for part in ("train", "test"))
    return train, test


def _part(content: dict[str, Array], part: str, classes: int, path: Path) -> Part:
    """Return one part of the arrays of a file."""
    try:
        images, labels, writers = (
            content[f"{part}.{name}"] for name in ("images", "labels", "writers")
        )
    except KeyError:
        raise ValueError(
            f"{path} is no EMNIST file: expected images, labels and writers in {part}"
        ) from None
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

    The files are mapped, not read, so that the images are in memory once.
    """
    inputs = torch.empty(len(paths) * records, 3, 32, 32, dtype=torch.uint8)
    targets = torch.empty(len(paths) * records, dtype=torch.int64)
    for number, path in enumerate(paths):
        size = path.stat().st_size
        if size != records * _RECORD:
            raise ValueError(
                f"{path} is damaged: {size} bytes, expected {records} records of {_RECORD}"
            )
        batch = np.memmap(path, np.uint8, "r", shape=(records, _RECORD))
        rows = slice(number * records, (number + 1) * records)
        targets[rows] = class_numbers(torch.from_numpy(batch[:, 0].astype(np.int64)), 10, path)
        inputs.numpy()[rows] = batch[:, 1:].reshape(records, 3, 32, 32)
    return Part(inputs, targets)
