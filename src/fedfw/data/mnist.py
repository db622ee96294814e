"""MNIST and Fashion-MNIST: four idx files; the writers of MNIST's digits come from QMNIST's label files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedfw.data.base import Data, Part, Request, class_numbers
from fedfw.data.folder import MissingDataError, find_files
from fedfw.data.idx import read_idx
from fedfw.data.sources import QMNIST_FILES


def load_idx_images(request: Request) -> Data:
    """Ten classes of 28 x 28 bytes from files in the order of ``IDX_FILES``."""
    train_images, train_labels, test_images, test_labels = request.files
    train = read_idx_part(train_images, train_labels, 10)
    return Data(request.name, train, read_idx_part(test_images, test_labels, 10), 10)


def load_mnist(request: Request) -> Data:
    """MNIST, with owners where QMNIST's label files are at hand."""
    data = load_idx_images(request)
    try:
        files = find_files("qmnist-labels", "qmnist-labels", (QMNIST_FILES,), request.data_dir)
    except MissingDataError as error:
        return replace(
            data,
            train=replace(data.train, owners_hint=str(error)),
            test=replace(data.test, owners_hint=str(error)),
        )
    return replace(data, train=_with_writers(data.train, files[0]), test=_with_writers(data.test, files[1]))


def read_idx_part(images: Path, labels: Path, classes: int) -> Part:
    """Inputs (samples, 1, 28, 28) uint8 as they are stored, targets (samples,)."""
    pixels, marks = read_idx(images, axes=3), read_idx(labels, axes=1)
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (28, 28):
        raise ValueError(f"{images} has {pixels.dtype} images of {pixels.shape[1:]}, expected bytes of (28, 28)")
    if len(pixels) != len(marks):
        raise ValueError(f"{images} has {len(pixels)} images, but {labels} has {len(marks)} labels")
    targets = class_numbers(torch.from_numpy(marks.astype(np.int64)), classes, labels)
    return Part(torch.from_numpy(pixels)[:, None], targets)


def _with_writers(part: Part, path: Path) -> Part:
    """Column 0 of the table is the class, which must agree, and column 2 the writer (unique across NIST's series).

    The test table goes on after MNIST's 10,000 digits with the 50,000 that QMNIST found again.
    """
    table = read_idx(path, axes=2)
    if table.shape[1] < 3:
        raise ValueError(f"{path} has {table.shape[1]} columns, expected class, series and writer")
    rows: Tensor = torch.from_numpy(table[: len(part), :3].astype(np.int64))
    if not torch.equal(rows[:, 0], part.targets):
        raise ValueError(f"{path} is not about these digits: its classes are not MNIST's labels")
    return replace(part, owners={"writer": rows[:, 2].clone()})
