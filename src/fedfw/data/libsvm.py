"""LIBSVM text: a9a, mushrooms and a user's own file; plain, .gz or .bz2."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.data.base import Data, Part, Request, classes_or_numbers, every_fifth
from fedfw.data.folder import find_own
from fedfw.data.limits import check_memory, read_isolated
from fedfw.linalg.rows import rows_of_scipy

ENDINGS = ("", ".gz", ".bz2")
_DENSE = 4  # bytes of a dense input
_MOST_DENSE = 1 << 26
"""Bytes of dense inputs up to which inputs are made dense."""
_SPARSE = 0.01
"""The share of numbers that are not zero, from which on inputs are made dense, too."""
_ENTRY = 12  # bytes of a number in sparse rows: its column and its value
_COLUMN = 32  # bytes that a feature takes in sparse rows and in the simplest model of them
_CLASSES = 24  # bytes a line, while the classes of labels are worked out
_FLOAT32 = float(np.finfo(np.float32).max)


def load_a9a(request: Request) -> Data:
    """Load 123 binary features of a census; the file with .t is the test part."""
    train, test = map(_read_a9a, request.files, (32_561, 16_281))
    return Data(request.name, train, test, 2)


def _read_a9a(path: Path, samples: int) -> Part:
    rows, labels = read_libsvm(path, features=123, samples=samples)
    return Part(_dense(rows), classes_or_numbers(labels, False, str(path))[0])


def load_mushrooms(request: Request) -> Data:
    """Load 112 binary features; edible or not."""
    (path,) = request.files
    return _in_one_piece(request.name, path, *read_libsvm(path, features=112, samples=8_124))


def load_own(request: Request, numbers: bool = False) -> Data:
    """Load a user's file: two or more whole-numbered labels are classes, in ascending order, unless
    ``numbers``.
    """
    path = find_own(request)
    return _in_one_piece(f"{request.name}:{path}", path, *read_libsvm(path), numbers)


def read_libsvm(
    path: Path, features: int | None = None, samples: int | None = None
) -> tuple[Any, npt.NDArray[np.float64]]:
    """Return the inputs as a scipy CSR matrix (samples, features) in float32 and the labels in
    float64.

    Indices begin at 0 where a line has one, else at 1; queries and comments are left out. Numbers
    of features and samples that are known are checked.

    Raises
    ------
    MemoryLimitError
        Where the lines need more memory than `fedfw.data.limits.memory_limit` allows, also in the
        form in which they are used.
    ValueError
        Where the file is damaged.
    """
    from scipy.sparse import csr_matrix

    arrays = read_isolated("libsvm", path)
    values = arrays["data"]
    labels = arrays["labels"]
    columns = max(1, int(arrays["columns"]))  # lines without any entry still have one feature
    shape = len(labels), features or columns
    nbytes = sum(array.nbytes for array in arrays.values()) + shape[0] * _CLASSES
    if _is_kept_sparse(len(values), shape):
        form = "sparse"
        nbytes += _ENTRY * len(values) + _COLUMN * shape[1]
    else:
        form = "dense"
        nbytes += _DENSE * shape[0] * shape[1]
    check_memory(path, nbytes, f"{shape[0]} lines of {shape[1]} features as {form} inputs")
    if not all((np.abs(numbers) <= _FLOAT32).all() for numbers in (values, labels)):
        raise ValueError(
            f"{path} is damaged or no LIBSVM text: a number that float32 does not hold, or NaN"
        )
    kinds = len(np.unique(labels))
    if features is not None and (columns > features or len(labels) != samples or kinds != 2):
        contents = f"{len(labels)} samples of {columns} features, {kinds} kinds of labels"
        raise ValueError(
            f"{path} is damaged: {contents}, expected {samples} of at most {features}, and 2"
        )
    rows = csr_matrix((values.astype(np.float32), arrays["indices"], arrays["indptr"]), shape)
    return rows, labels


def _in_one_piece(
    name: str, path: Path, rows: Any, labels: npt.NDArray[np.float64], numbers: bool = False
) -> Data:
    """Return the data of a file without a test half: every fifth sample is held out. Whole labels
    are classes unless ``numbers`` says that they are values.
    """
    if len(labels) < 2:
        raise ValueError(f"{path} has {len(labels)} samples, expected at least 2")
    targets, classes = classes_or_numbers(labels, numbers, f"{path}: the first column")
    test = every_fifth(len(labels))
    convert = rows_of_scipy if _is_kept_sparse(rows.nnz, rows.shape) else _dense
    # Each part is converted by itself: all rows beside both parts would take twice the memory.
    train = Part(convert(rows[~test.numpy()]), targets[~test])
    held_out = Part(convert(rows[test.numpy()]), targets[test])
    return Data(name, train, held_out, classes)


def _is_kept_sparse(entries: int, shape: tuple[int, int]) -> bool:
    """Return whether inputs of this shape stay sparse: most are zero, and dense ones are large."""
    numbers = shape[0] * shape[1]
    return _DENSE * numbers > _MOST_DENSE and entries < _SPARSE * numbers


def _dense(rows: Any) -> Tensor:
    return torch.from_numpy(rows.toarray())
