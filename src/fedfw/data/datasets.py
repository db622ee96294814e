"""Data sets by name: inputs in [0, 1], one row a sample, and classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedfw.data.idx import read_idx


@dataclass(frozen=True)
class Data:
    """Training and test samples; inputs (samples, features) in float32, labels (samples,) int64."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int

    @property
    def features(self) -> int:
        return self.train[0].shape[1]


def digits(data_dir: Path | None) -> Data:
    """The 1,797 handwritten digits (8 x 8) that ship with scikit-learn; every fifth one is for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.from_numpy(images).float() / 16, torch.from_numpy(labels).long()
    held_out = torch.arange(len(inputs)) % 5 == 0
    return Data((inputs[~held_out], targets[~held_out]), (inputs[held_out], targets[held_out]), 10)


def mnist(data_dir: Path | None) -> Data:
    """MNIST from its four idx files in ``<data-dir>/mnist``."""
    if data_dir is None:
        raise ValueError("mnist is read from files: say where with --data-dir DIR (the files lie in DIR/mnist)")
    folder = data_dir / "mnist"

    def load(part: str) -> tuple[Tensor, Tensor]:
        arrays = []
        for kind in ("images-idx3", "labels-idx1"):
            path = folder / f"{part}-{kind}-ubyte.gz"
            if not path.exists():
                raise ValueError(f"no file {path}: mnist needs {path.name} there")
            arrays.append(torch.from_numpy(read_idx(path).copy()))
        return arrays[0].flatten(1).float() / 255, arrays[1].long()

    return Data(load("train"), load("t10k"), 10)


DATASETS: dict[str, Callable[[Path | None], Data]] = {"digits": digits, "mnist": mnist}


def load_data(name: str, data_dir: Path | None = None) -> Data:
    """A data set by its name."""
    if name not in DATASETS:
        raise ValueError(f"unknown dataset {name!r}, expected one of {', '.join(DATASETS)}")
    return DATASETS[name](data_dir)
