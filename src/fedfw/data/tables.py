"""A user's own table: a .csv file with names in its first line, or arrays in an .npz file."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.checks import warn_of_identifiers
from fedfw.data.base import (
    Columns,
    Data,
    Part,
    Request,
    as_numbers,
    classes_or_numbers,
    every_fifth,
)
from fedfw.data.folder import find_own
from fedfw.data.limits import check_memory, read_isolated

INPUTS = "x"
"""The name of the inputs in an .npz file; in a .csv file they are all columns that are nothing
else.
"""
_KINDS = "buif"  # NumPy's letters for truth values and numbers
# Bytes that are held at most, copies for training and testing included: of an input, of a row, and
# of a row's places while the classes or the owners of a column are worked out.
_INPUT = 9
_ROW = 16
_PLACE = 48

Array = npt.NDArray[Any]


def load_table(request: Request) -> Data:
    """Load a user's table: the columns that the request names are the target, the time and the
    client; the rest are inputs.

    Targets are classes where they are text or whole numbers, and numbers otherwise, or where the
    request says so. With a time they are pairs (event, time). Every fifth sample is for testing, of
    every client where there are some.
    """
    columns = request.columns
    path = find_own(request)
    if path.suffix not in (".csv", ".npz"):
        raise ValueError(f"{path}, expected the path of your own .csv or .npz file")
    if columns.target is None:
        raise ValueError(
            f"{path}: no target is named, expected the column that is to be predicted (--target "
            "NAME)"
        )
    read = _read_csv if path.suffix == ".csv" else _read_npz
    inputs, named, features = read(path, columns.named)
    if len(inputs) < 2:
        raise ValueError(f"{path} has {len(inputs)} samples, expected at least 2")
    try:
        targets, classes = _targets(named, columns)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    owners = {}
    held_out = every_fifth(len(inputs))
    if columns.client is not None:
        _, places = np.unique(named[columns.client], return_inverse=True)
        owners["client"] = torch.from_numpy(places)
        held_out = _every_fifth_of(owners["client"])
    if not bool(held_out.any()):
        raise ValueError(
            f"{path}: no client has five samples, expected one that has, to test on its fifth"
        )
    train, test = (
        Part(inputs[rows], targets[rows], {kind: ids[rows] for kind, ids in owners.items()})
        for rows in (~held_out, held_out)
    )
    return Data(f"{request.name}:{path}", train, test, classes, columns=features)


def _read_csv(path: Path, wanted: list[str]) -> tuple[Tensor, dict[str, Array], tuple[str, ...]]:
    """Return inputs (samples, features) in float32, the wanted columns by name, and the names of
    the features.
    """
    arrays = read_isolated("csv", path, *wanted)
    named = {name: arrays[f"column {name}"] for name in wanted}
    # The names of features are there as an array and as texts.
    needed = _INPUT * arrays["inputs"].size + 2 * arrays["features"].nbytes
    _check_size(path, needed, arrays["inputs"], named)
    inputs = torch.from_numpy(arrays["inputs"])
    features = tuple(arrays["features"].tolist())
    warn_of_identifiers(features, inputs, str(path))
    return inputs, named, features


def _read_npz(path: Path, wanted: list[str]) -> tuple[Tensor, dict[str, Array], tuple[str, ...]]:
    """Return inputs (samples, ...), bytes where they are images and float32 otherwise, the wanted
    arrays by name, and no names of features.
    """
    named = read_isolated("npz", path, INPUTS, *wanted)
    inputs = named.pop(INPUTS)
    if inputs.ndim < 2 or not inputs.size:
        raise ValueError(f"{path}: {INPUTS} has shape {inputs.shape}, expected (samples, features)")
    for name, values in {INPUTS: inputs, **named}.items():
        if values.dtype.kind not in _KINDS:
            raise ValueError(f"{path}: {name} is {values.dtype}, expected numbers")
        if values.shape != inputs.shape[:1] and name != INPUTS:
            raise ValueError(
                f"{path}: {name} has shape {values.shape}, expected one for {inputs.shape[:1]} "
                "inputs"
            )
    images = inputs.ndim == 4 and inputs.dtype == np.uint8
    # Dividing images into two parts copies them: 2 bytes a pixel. Numbers are checked first: as
    # stored, as float32 (4 bytes) and as a mask (1 byte); then _INPUT bytes each.
    needed = 2 * inputs.size if images else inputs.size * max(inputs.itemsize + 5, _INPUT)
    _check_size(path, needed, inputs, named)
    if not images:
        inputs = _finite(path, INPUTS, inputs, np.float32)
    named = {name: _finite(path, name, values, np.float64) for name, values in named.items()}
    return torch.from_numpy(inputs), named, ()


def _check_size(path: Path, needed: int, inputs: Array, named: dict[str, Array]) -> None:
    """Refuse a table whose inputs need so many bytes where these and its columns are too large."""
    columns = sum(2 * values.nbytes for values in named.values() if values.dtype.kind == "U")
    rows = (_ROW + _PLACE * len(named)) * len(inputs)
    check_memory(path, needed + rows + columns, f"{INPUTS} of shape {inputs.shape}")


def _finite(path: Path, name: str, values: Array, dtype: type[np.floating[Any]]) -> Array:
    """Return an array in another floating-point type; refuse numbers that float32 cannot hold."""
    with np.errstate(over="ignore"):
        if not np.isfinite(values.astype(np.float32, copy=False)).all():
            raise ValueError(
                f"{path}: {name} has NaN, infinity or numbers beyond float32, expected none"
            )
        return values.astype(dtype, copy=False)


def _targets(named: dict[str, Array], columns: Columns) -> tuple[Tensor, int | None]:
    """Return (samples,) classes from 0 and their number; or numbers, or pairs (samples, 2), and
    None.
    """
    assert columns.target is not None
    if columns.time is None:
        return classes_or_numbers(named[columns.target], columns.numbers, columns.target)
    events = as_numbers(named[columns.target], columns.target)
    times = as_numbers(named[columns.time], columns.time)
    if not bool(((events == 0) | (events == 1)).all() and (times >= 0).all()):
        expected = f"{columns.target} 0 or 1, and {columns.time} at least 0"
        raise ValueError(f"an event or a time is out of range, expected {expected}")
    return torch.stack([events, times], 1), None


def _every_fifth_of(owners: Tensor) -> Tensor:
    """Return (samples,) bool: the fifth, tenth, ... sample of every owner."""
    chosen = torch.zeros(len(owners), dtype=torch.bool)
    for owner in range(int(owners.max()) + 1):
        chosen[(owners == owner).nonzero().flatten()[4::5]] = True
    return chosen
