"""EMNIST: the publisher's .mat files, which name the writers, or the idx files, which do not.

Both layouts store the pixels of each image column by column; here the images stand upright.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.data.base import Data, Part, Request, class_numbers
from fedfw.data.folder import how_to_get
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
        return Data(request.name, *read_mat(request.files[0], classes), classes)
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


def read_mat(path: Path, classes: int) -> tuple[Part, Part]:
    """The training and the test part of a .mat file, with the writers."""
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["dataset"], simplify_cells=True)
    except Exception as error:  # scipy meets damaged bytes with errors of many kinds
        raise ValueError(f"{path} is damaged: {error}") from None
    train, test = (_part(content, part, classes, path) for part in ("train", "test"))
    return train, test


def _part(content: Any, part: str, classes: int, path: Path) -> Part:
    try:
        images, labels, writers = (content["dataset"][part][name] for name in ("images", "labels", "writers"))
    except (KeyError, TypeError, IndexError):
        raise ValueError(f"{path} is no EMNIST file: expected images, labels and writers in dataset.{part}") from None
    images = np.atleast_2d(images)
    samples = len(images)
    if images.dtype != np.uint8 or images.shape[1] != 28 * 28:
        raise ValueError(f"{path} has {images.dtype} images of shape {images.shape}, expected bytes (samples, 784)")
    # One copy in all: the file's array is column-major, so its transpose (28 columns, 28 rows, samples) is a view.
    upright = np.ascontiguousarray(images.T.reshape(28, 28, samples).transpose(2, 1, 0))
    targets = class_numbers(_whole_numbers(labels, samples, "labels", path), classes, path)
    owners = {"writer": _whole_numbers(writers, samples, "writers", path)}
    return Part(torch.from_numpy(upright)[:, None], targets, owners)


def _whole_numbers(values: Any, samples: int, name: str, path: Path) -> Tensor:
    array: npt.NDArray[Any] = np.asarray(values).reshape(-1)
    if array.dtype.kind not in "uif" or len(array) != samples or (array != np.floor(array)).any():
        raise ValueError(f"{path} is damaged: {len(array)} {name} of {array.dtype}, expected {samples} whole numbers")
    return torch.from_numpy(array.astype(np.int64))
