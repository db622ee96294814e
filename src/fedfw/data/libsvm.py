"""LIBSVM text: a9a, mushrooms and a user's own file; plain, .gz or .bz2."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.data.base import Data, Part, Request, every_fifth
from fedfw.data.folder import MissingDataError

ENDINGS = ("", ".gz", ".bz2")
_LARGEST = 4 << 30  # bytes of dense inputs


def load_a9a(request: Request) -> Data:
    """123 binary features of a census; the file with .t is the test part."""
    train, test = map(_read_a9a, request.files, (32_561, 16_281))
    return Data(request.name, train, test, 2)


def _read_a9a(path: Path, samples: int) -> Part:
    rows, labels = read_libsvm(path, features=123, samples=samples)
    return Part(_dense(rows, path), _class_numbers(labels)[0])


def load_mushrooms(request: Request) -> Data:
    """112 binary features; edible or not."""
    (path,) = request.files
    return _in_one_piece(request.name, path, *read_libsvm(path, features=112, samples=8_124))


def load_own(request: Request, numbers: bool = False) -> Data:
    """A user's file: two or more whole-numbered labels are classes, in ascending order, unless ``numbers``."""
    name = request.name
    if not request.argument:
        raise ValueError(f"{name} reads your own file, expected {name}:PATH")
    path = Path(request.argument).expanduser()
    if not path.is_file():
        raise MissingDataError(f"{name}: no file {path.name} in {path.absolute().parent}")
    return _in_one_piece(f"{name}:{path}", path, *read_libsvm(path), numbers)


def read_libsvm(
    path: Path, features: int | None = None, samples: int | None = None
) -> tuple[Any, npt.NDArray[np.float64]]:
    """The inputs as a scipy CSR matrix (samples, features) in float32, and the labels (samples,).

    ``samples`` is given for published files of two classes: nothing else would show that lines are missing.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        rows, labels = load_svmlight_file(
            path, n_features=features, dtype=np.float32, zero_based="auto" if features is None else False
        )
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or no LIBSVM text: {error}") from None
    if samples is not None and (len(labels), kinds := len(np.unique(labels))) != (samples, 2):
        raise ValueError(f"{path} is damaged: {len(labels)} samples, {kinds} kinds of labels, expected {samples} and 2")
    if not (np.isfinite(rows.data).all() and np.isfinite(labels).all()):
        raise ValueError(f"{path} has values that are not finite")
    return rows, labels


def _in_one_piece(name: str, path: Path, rows: Any, labels: npt.NDArray[np.float64], numbers: bool = False) -> Data:
    if len(labels) < 2:
        raise ValueError(f"{path} has {len(labels)} samples, expected at least 2")
    kinds = np.unique(labels)
    if not numbers and len(kinds) >= 2 and (kinds == np.floor(kinds)).all():
        targets, classes = _class_numbers(labels)
    else:
        targets, classes = torch.from_numpy(labels).float(), None
    held_out = every_fifth(len(labels))
    _check_size(rows, path)
    train, test = (Part(_dense(rows[mask.numpy()], path), targets[mask]) for mask in (~held_out, held_out))
    return Data(name, train, test, classes)


def _class_numbers(labels: npt.NDArray[np.float64]) -> tuple[Tensor, int]:
    """(samples,) class numbers from 0 in the order of the labels, and how many there are."""
    kinds, numbers = np.unique(labels, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), len(kinds)


def _check_size(rows: Any, path: Path) -> None:
    samples, features = rows.shape
    if samples * features * 4 > _LARGEST:
        raise ValueError(
            f"{path} has {samples} samples of {features} features: {samples * features * 4 / 2**30:.1f} GiB as dense "
            f"inputs, expected at most {_LARGEST >> 30} GiB"
        )


def _dense(rows: Any, path: Path) -> Tensor:
    _check_size(rows, path)
    return torch.from_numpy(rows.toarray())
