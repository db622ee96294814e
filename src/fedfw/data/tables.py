"""A user's own table: a .csv file with names in its first line, or arrays in an .npz file."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedfw.data.base import Columns, Data, Part, Request, every_fifth
from fedfw.data.csv_text import number_in, read_csv
from fedfw.data.folder import MissingDataError
from fedfw.data.npz import read_npz

INPUTS = "x"
"""The name of the inputs in an .npz file; in a .csv file they are all columns that are nothing else."""
_LARGEST = 4 << 30  # bytes of a file, and of dense inputs

Values = list[str]
"""What a column holds, as text."""


def load_table(request: Request) -> Data:
    """The columns that the request names are the target, the time and the client; the rest are inputs.

    Targets are classes where they are text or whole numbers, and numbers otherwise, or where the request says so. With
    a time they are pairs (event, time). Every fifth sample is for testing, of every client where there are some.
    """
    path, columns = Path(request.argument).expanduser(), request.columns
    if not request.argument or path.suffix not in (".csv", ".npz"):
        raise ValueError(f"{request.name}:{request.argument}, expected the path of your own .csv or .npz file")
    if columns.target is None:
        raise ValueError(f"{path}: no target is named, expected the column that is to be predicted (--target NAME)")
    if not path.is_file():
        raise MissingDataError(f"{request.name}: no file {path.name} in {path.absolute().parent}")
    inputs, named = (_read_csv if path.suffix == ".csv" else _read_npz)(path, columns.named)
    if len(inputs) < 2:
        raise ValueError(f"{path} has {len(inputs)} samples, expected at least 2")
    try:
        targets, classes = _targets(named, columns)
        owners = {} if columns.client is None else {"client": _numbered(named[columns.client])}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    held_out = every_fifth(len(inputs)) if not owners else _every_fifth_of(owners["client"])
    if not bool(held_out.any()):
        raise ValueError(f"{path}: no client has five samples, expected one that has, to test on its fifth")
    train, test = (
        Part(inputs[rows], targets[rows], {kind: ids[rows] for kind, ids in owners.items()})
        for rows in (~held_out, held_out)
    )
    return Data(f"{request.name}:{path}", train, test, classes)


def _read_csv(path: Path, wanted: list[str]) -> tuple[Tensor, dict[str, Values]]:
    """Inputs (samples, features) in float32, and the wanted columns by name."""
    rows = read_csv(path, _LARGEST)
    names = next(rows)
    for name in wanted:
        if name not in names:
            raise ValueError(f"{path} has no column {name!r}, expected one of {', '.join(names)[:300]}")
    places = {name: names.index(name) for name in wanted}
    features = [(at, name) for at, name in enumerate(names) if name not in places]
    if not features:
        raise ValueError(f"{path} has no column beside {', '.join(wanted)}, expected inputs")
    numbers, named = array("f"), {name: Values() for name in wanted}
    for count, row in enumerate(rows, 1):
        try:
            numbers.extend(number_in(row[at], name) for at, name in features)
            for name, at in places.items():
                if not row[at]:
                    raise ValueError(f"{name!r} is empty, expected a value")
                named[name].append(row[at])
        except ValueError as error:
            raise ValueError(f"{path}: sample {count}: {error}") from None
        if len(numbers) * 4 > _LARGEST:
            raise ValueError(f"{path} has more than {_LARGEST} bytes of inputs, expected at most so many")
    return torch.from_numpy(np.array(numbers)).reshape(-1, len(features)), named


def _read_npz(path: Path, wanted: list[str]) -> tuple[Tensor, dict[str, Values]]:
    """Inputs (samples, ...), bytes where they are images and float32 otherwise, and the wanted arrays by name."""
    inputs, *rest = read_npz(path, INPUTS, *wanted, kinds="buif", largest=_LARGEST)
    for name, values in zip(wanted, rest, strict=True):
        if values.shape != inputs.shape[:1]:
            raise ValueError(f"{path}: {name} has shape {values.shape}, expected one for {inputs.shape[:1]} inputs")
    if inputs.ndim < 2 or not inputs.size:
        raise ValueError(f"{path}: {INPUTS} has shape {inputs.shape}, expected (samples, features)")
    if inputs.ndim != 4 or inputs.dtype != np.uint8:
        with np.errstate(over="ignore"):
            inputs = inputs.astype(np.float32)
        if not np.isfinite(inputs).all():
            raise ValueError(f"{path}: {INPUTS} has NaN, infinity or numbers beyond float32, expected none")
    named = {name: [repr(v) for v in (values + 0).tolist()] for name, values in zip(wanted, rest, strict=True)}
    return torch.from_numpy(inputs), named


def _targets(named: dict[str, Values], columns: Columns) -> tuple[Tensor, int | None]:
    """(samples,) classes from 0 and their number; or numbers, or pairs (samples, 2), and None."""
    assert columns.target is not None
    values = named[columns.target]
    if columns.time is not None:
        pairs = torch.tensor([_numbers(values, columns.target), _numbers(named[columns.time], columns.time)]).T
        if not bool(((pairs[:, 0] == 0) | (pairs[:, 0] == 1)).all() and (pairs[:, 1] >= 0).all()):
            expected = f"{columns.target} 0 or 1, and {columns.time} at least 0"
            raise ValueError(f"an event or a time is out of range, expected {expected}")
        return pairs.contiguous(), None
    if columns.numbers:
        return torch.tensor(_numbers(values, columns.target)), None
    try:
        numbers = _numbers(values, columns.target)
    except ValueError:
        return _classes(values, columns.target)
    whole = all(number.is_integer() for number in numbers)
    return _classes(values, columns.target) if whole else (torch.tensor(numbers), None)


def _classes(values: Values, name: str) -> tuple[Tensor, int]:
    numbers = _numbered(values)
    if (kinds := int(numbers.max()) + 1) < 2:
        raise ValueError(f"{name} has one value alone, expected at least 2 classes")
    return numbers, kinds


def _numbers(values: Values, name: str) -> list[float]:
    return [number_in(value, name) for value in values]


def _numbered(values: Values) -> Tensor:
    """(samples,) places of the values among all different ones: in the order of numbers, or of texts."""
    try:
        keys: list[float] | Values = _numbers(values, "")
    except ValueError:
        keys = values
    place = {key: number for number, key in enumerate(sorted(set(keys)))}  # type: ignore[type-var]
    return torch.tensor([place[key] for key in keys])


def _every_fifth_of(owners: Tensor) -> Tensor:
    """(samples,) bool: the fifth, tenth, ... sample of every owner."""
    chosen = torch.zeros(len(owners), dtype=torch.bool)
    for owner in range(int(owners.max()) + 1):
        chosen[(owners == owner).nonzero().flatten()[4::5]] = True
    return chosen
