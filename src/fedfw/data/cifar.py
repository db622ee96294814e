"""CIFAR-10, the binary version: records of one label byte and 3 x 32 x 32 bytes of red, green and blue."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedfw.data.base import Data, Part, Request, class_numbers
from fedfw.data.folder import MissingDataError
from fedfw.data.isolated import read_isolated

_RECORD, _RECORD_100 = 1 + 3 * 32 * 32, 2 + 3 * 32 * 32
_LARGEST = 1 << 28  # bytes; CIFAR-100's training images have 0.15 GB


def load_cifar10(request: Request) -> Data:
    """50,000 + 10,000 images from files in the order of ``CIFAR10_FILES``."""
    *train, test = request.files
    return Data(request.name, read_batches(train, 10_000), read_batches([test], 10_000), 10)


def load_cifar100_images(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """CIFAR-100 training images (m, 3, 32, 32) uint8 and their 100 fine labels, for experiments on single images.

    From ``cifar-100-binary/train.bin``, or from a piece of it: ``cifar100-small/cifar100_5_per_class.npz``.
    """
    whole, piece = (folder / name for name in ("cifar-100-binary/train.bin", "cifar100-small/cifar100_5_per_class.npz"))
    if whole.is_file():
        if (size := whole.stat().st_size) % _RECORD_100 or not 0 < size <= _LARGEST:
            raise ValueError(f"{whole} is damaged: {size} bytes, expected records of {_RECORD_100}, {_LARGEST} at most")
        records = np.fromfile(whole, np.uint8).reshape(-1, _RECORD_100)  # coarse label, fine label, pixels
        images, labels = records[:, 2:].reshape(-1, 3, 32, 32), records[:, 1]
        return torch.from_numpy(images), class_numbers(torch.from_numpy(labels), 100, whole)
    if piece.is_file():
        found = read_isolated("npz", piece, "x", "y")
        images, labels = found["x"], found["y"]
        if images.dtype != np.uint8 or images.shape != (len(images), 3, 32, 32) or labels.shape != images.shape[:1]:
            held = f"{images.dtype} images of {images.shape}, labels of {labels.shape}"
            raise ValueError(f"{piece} is damaged: {held}, expected bytes (samples, 3, 32, 32) and (samples,)")
        return torch.from_numpy(images), class_numbers(torch.from_numpy(labels.astype(np.int64)), 100, piece)
    raise MissingDataError(f"neither {whole} nor {piece} is there: CIFAR-100's binary version is at its publisher's")


def read_batches(paths: Sequence[Path], records: int) -> Part:
    """Files of ``records`` records each: inputs (samples, 3, 32, 32) uint8, targets (samples,).

    The files are mapped, not read, so that the images are in memory once.
    """
    inputs = torch.empty(len(paths) * records, 3, 32, 32, dtype=torch.uint8)
    targets = torch.empty(len(paths) * records, dtype=torch.int64)
    for number, path in enumerate(paths):
        if (size := path.stat().st_size) != records * _RECORD:
            raise ValueError(f"{path} is damaged: {size} bytes, expected {records} records of {_RECORD}")
        batch = np.memmap(path, np.uint8, "r", shape=(records, _RECORD))
        rows = slice(number * records, (number + 1) * records)
        targets[rows] = class_numbers(torch.from_numpy(batch[:, 0].astype(np.int64)), 10, path)
        inputs.numpy()[rows] = batch[:, 1:].reshape(records, 3, 32, 32)
    return Part(inputs, targets)
