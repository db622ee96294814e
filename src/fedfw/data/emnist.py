"""EMNIST: the publisher's .mat files, which name the writers, or the idx files, which do not.

Both layouts store the pixels of each image column by column; here the images stand upright.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.data.base import Data, Part, Request, class_numbers
from fedfw.data.folder import how_to_get
from fedfw.data.isolated import read_isolated
from fedfw.data.mnist import read_idx_part


def emnist_layouts(split: str) -> tuple[tuple[str, ...], ...]:
    """The files as they may lie in the folder, the better first: .mat or idx, unpacked with their folder or without."""
    idx = [
        f"emnist-{split}-{part}-{kind}-ubyte.gz"
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]
    mat = f"emnist-{split}.mat"
    return (mat,), (f"matlab/{mat}",), tuple(idx), tuple(f"gzip/{file}" for file in idx)


def load_emnist(request: Request, classes: int) -> Data:
    """One split from a .mat file or from four idx files."""
    if len(request.files) == 1:
        return Data(request.name, *read_parts(request.files[0], classes), classes)
    train_images, train_labels, test_images, test_labels = request.files
    hint = f"the writers are in the .mat file; {how_to_get(request.name, request.data_dir)}"
    train, test = (
        replace(part, inputs=part.inputs.transpose(2, 3).contiguous(), owners_hint=hint)
        for part in (
            read_idx_part(train_images, train_labels, classes),
            read_idx_part(test_images, test_labels, classes),
        )
    )
    return Data(request.name, train, test, classes)


def read_parts(path: Path, classes: int) -> tuple[Part, Part]:
    """The training and the test part of a .mat file, with the writers."""
    names = [f"dataset.{part}.{field}" for part in ("train", "test") for field in ("images", "labels", "writers")]
    content = read_isolated("mat", path, *names)
    train, test = (_part(content, f"dataset.{part}", classes, path) for part in ("train", "test"))
    return train, test


def _part(content: dict[str, npt.NDArray[Any]], part: str, classes: int, path: Path) -> Part:
    """One part of the arrays of a file."""
    try:
        images, labels, writers = (content[f"{part}.{name}"] for name in ("images", "labels", "writers"))
    except KeyError:
        raise ValueError(f"{path} is no EMNIST file: expected images, labels and writers in {part}") from None
    samples = len(images)
    if images.dtype != np.uint8 or images.shape != (samples, 28 * 28) or not samples:
        raise ValueError(f"{path} has {images.dtype} images of shape {images.shape}, expected bytes (samples, 784)")
    # One copy in all: the file's array is column-major, so its transpose (28 columns, 28 rows, samples) is a view.
    upright = np.ascontiguousarray(images.T.reshape(28, 28, samples).transpose(2, 1, 0))
    targets = class_numbers(_whole_numbers(labels, samples, "labels", path), classes, path)
    owners = {"writer": _whole_numbers(writers, samples, "writers", path)}
    return Part(torch.from_numpy(upright)[:, None], targets, owners)


def _whole_numbers(values: npt.NDArray[Any], samples: int, name: str, path: Path) -> Tensor:
    whole = (values >= 0) & (values < 2**53) & (values == np.floor(values))
    if values.size != samples or not whole.all():
        raise ValueError(f"{path} is damaged: {values.size} {name} of {values.dtype}, expected {samples} whole numbers")
    return torch.from_numpy(values.reshape(-1).astype(np.int64))
