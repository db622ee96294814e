"""A user's own table: a .csv file with names in its first line, or arrays in an .npz file."""

import csv
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.checks import warn_of_identifiers
from fedfw.data.base import Columns, Data, Part, Request, every_fifth
from fedfw.data.folder import MissingDataError
from fedfw.data.limits import MemoryLimitError, MemoryMeter, read_isolated

INPUTS = "x"
"""The name of the inputs in an .npz file; in a .csv file they are all columns that are nothing
else.
"""
_KINDS = "buif"  # NumPy's letters for truth values and numbers
# Bytes that are held at most, copies for training and testing included: an input, a row, a row's
# place in a column, and a text that a column has not had before.
_INPUT = 9
_ROW = 16
_PLACE = 48
_TEXT = 300


@dataclass(frozen=True)
class Column:
    """A column that is no input.

    Parameters
    ----------
    kinds : list of str or array of numbers
        Its different values.
    places : array
        (samples,) int64: the place of each sample's value among them.
    """

    kinds: list[str] | npt.NDArray[Any]
    places: npt.NDArray[np.int64]

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """Return the kinds as numbers that float32 can hold; a ValueError where one is none."""
        return np.array([number_in(str(kind), name) for kind in self.kinds])

    def ordered(self) -> tuple[Tensor, int]:
        """Return (samples,) places among the different values in the order of numbers, or of texts;
        and how many.
        """
        keys: npt.NDArray[Any]
        try:
            keys = self.numbers("")
        except ValueError:
            keys = np.array(self.kinds, object)
        found, places = np.unique(keys, return_inverse=True)
        return torch.from_numpy(places.astype(np.int64)[self.places]), len(found)


def load_table(request: Request) -> Data:
    """Load a user's table: the columns that the request names are the target, the time and the
    client; the rest are inputs.

    Targets are classes where they are text or whole numbers, and numbers otherwise, or where the
    request says so. With a time they are pairs (event, time). Every fifth sample is for testing, of
    every client where there are some.
    """
    path = Path(request.argument).expanduser()
    columns = request.columns
    if not request.argument or path.suffix not in (".csv", ".npz"):
        raise ValueError(
            f"{request.name}:{request.argument}, expected the path of your own .csv or .npz file"
        )
    if columns.target is None:
        raise ValueError(
            f"{path}: no target is named, expected the column that is to be predicted (--target "
            "NAME)"
        )
    if not path.is_file():
        raise MissingDataError(f"{request.name}: no file {path.name} in {path.absolute().parent}")
    inputs, named = (_read_csv if path.suffix == ".csv" else _read_npz)(path, columns.named)
    if len(inputs) < 2:
        raise ValueError(f"{path} has {len(inputs)} samples, expected at least 2")
    try:
        targets, classes = _targets(named, columns)
        owners = {} if columns.client is None else {"client": named[columns.client].ordered()[0]}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    held_out = every_fifth(len(inputs)) if not owners else _every_fifth_of(owners["client"])
    if not bool(held_out.any()):
        raise ValueError(
            f"{path}: no client has five samples, expected one that has, to test on its fifth"
        )
    train, test = (
        Part(inputs[rows], targets[rows], {kind: ids[rows] for kind, ids in owners.items()})
        for rows in (~held_out, held_out)
    )
    used: tuple[str, ...] = ()
    if path.suffix == ".csv":
        used = tuple(name for name in next(read_csv(path)) if name not in columns.named)
        warn_of_identifiers(used, inputs, str(path))
    return Data(f"{request.name}:{path}", train, test, classes, columns=used)


def _read_csv(path: Path, wanted: list[str]) -> tuple[Tensor, dict[str, Column]]:
    """Return inputs (samples, features) in float32, and the wanted columns by name."""
    meter = MemoryMeter(path)
    rows = read_csv(path)
    names = next(rows)
    for name in wanted:
        if name not in names:
            raise ValueError(
                f"{path} has no column {name!r}, expected one of {', '.join(names)[:300]}"
            )
    at_wanted = {name: names.index(name) for name in wanted}
    features = [(at, name) for at, name in enumerate(names) if name not in at_wanted]
    if not features:
        raise ValueError(f"{path} has no column beside {', '.join(wanted)}, expected inputs")
    entries = array("f")
    kinds: dict[str, dict[str, int]] = {name: {} for name in wanted}
    places = {name: array("q") for name in wanted}
    row_nbytes = _INPUT * len(features) + _ROW + _PLACE * len(wanted)
    for count, row in enumerate(rows, 1):
        try:
            meter.hold(row_nbytes, f"{count} rows of {len(features)} inputs")
            entries.extend(number_in(row[at], name) for at, name in features)
            for name, at in at_wanted.items():
                if not row[at]:
                    raise ValueError(f"{name!r} is empty, expected a value")
                if row[at] not in kinds[name]:
                    meter.hold(_TEXT + 4 * len(row[at]), f"the values of {name!r}")
                    kinds[name][row[at]] = len(kinds[name])
                places[name].append(kinds[name][row[at]])
        except MemoryLimitError:
            raise
        except ValueError as error:
            raise ValueError(f"{path}: sample {count}: {error}") from None
    inputs = np.frombuffer(entries, np.float32) if entries else np.empty(0, np.float32)
    named = {
        name: Column(list(found), np.array(places[name], np.int64)) for name, found in kinds.items()
    }
    return torch.from_numpy(inputs).reshape(-1, len(features)), named


def _read_npz(path: Path, wanted: list[str]) -> tuple[Tensor, dict[str, Column]]:
    """Return inputs (samples, ...), bytes where they are images and float32 otherwise, and the
    wanted arrays by name.
    """
    found = read_isolated("npz", path, INPUTS, *wanted)
    inputs = found.pop(INPUTS)
    for name, values in {INPUTS: inputs, **found}.items():
        if values.dtype.kind not in _KINDS:
            raise ValueError(
                f"{path} is damaged: {name} is {values.dtype} of {values.shape}, expected numbers"
            )
        if values.shape != inputs.shape[:1] and name != INPUTS:
            raise ValueError(
                f"{path}: {name} has shape {values.shape}, expected one for {inputs.shape[:1]} "
                "inputs"
            )
    if inputs.ndim < 2 or not inputs.size:
        raise ValueError(f"{path}: {INPUTS} has shape {inputs.shape}, expected (samples, features)")
    images = inputs.ndim == 4 and inputs.dtype == np.uint8
    # Images are there twice when they are divided. Numbers are there as they are stored, as float32
    # and as whether they are finite, and then as float32 twice.
    needed = 2 * inputs.size if images else inputs.size * max(inputs.itemsize + 5, _INPUT)
    meter = MemoryMeter(path)
    meter.check(
        needed + (_ROW + _PLACE * len(wanted)) * len(inputs), f"{INPUTS} of shape {inputs.shape}"
    )
    if not images:
        with np.errstate(over="ignore"):
            inputs = inputs.astype(np.float32, copy=False)
        if not np.isfinite(inputs).all():
            raise ValueError(
                f"{path}: {INPUTS} has NaN, infinity or numbers beyond float32, expected none"
            )
    named = {}
    for name, values in found.items():
        different, places = np.unique(values + 0, return_inverse=True)
        meter.check(_TEXT * len(different), f"the values of {name!r}")
        named[name] = Column(different, places.astype(np.int64))
    return torch.from_numpy(inputs), named


def _targets(named: dict[str, Column], columns: Columns) -> tuple[Tensor, int | None]:
    """Return (samples,) classes from 0 and their number; or numbers, or pairs (samples, 2), and
    None.
    """
    assert columns.target is not None
    values = named[columns.target]
    if columns.time is not None:
        times = named[columns.time]
        events = _numbers(values, columns.target)
        lengths = _numbers(times, columns.time)
        pairs = torch.stack([events, lengths], 1)
        if not bool(((pairs[:, 0] == 0) | (pairs[:, 0] == 1)).all() and (pairs[:, 1] >= 0).all()):
            expected = f"{columns.target} 0 or 1, and {columns.time} at least 0"
            raise ValueError(f"an event or a time is out of range, expected {expected}")
        return pairs, None
    if columns.numbers:
        return _numbers(values, columns.target), None
    try:
        targets = values.numbers(columns.target)
    except ValueError:
        return _classes(values, columns.target)
    if (targets == np.floor(targets)).all():
        return _classes(values, columns.target)
    return _numbers(values, columns.target), None


def _classes(values: Column, name: str) -> tuple[Tensor, int]:
    class_numbers, kinds = values.ordered()
    if kinds < 2:
        raise ValueError(f"{name} has one value alone, expected at least 2 classes")
    return class_numbers, kinds


def _numbers(values: Column, name: str) -> Tensor:
    """Return the values as numbers, (samples,) float32."""
    return torch.from_numpy(values.numbers(name).astype(np.float32)[values.places])


def _every_fifth_of(owners: Tensor) -> Tensor:
    """Return (samples,) bool: the fifth, tenth, ... sample of every owner."""
    chosen = torch.zeros(len(owners), dtype=torch.bool)
    for owner in range(int(owners.max()) + 1):
        chosen[(owners == owner).nonzero().flatten()[4::5]] = True
    return chosen


# Characters of a row, which may go on over several lines; its cells take twenty times as much.
_LONGEST = 1 << 20
_FLOAT32 = float(np.finfo(np.float32).max)


def read_csv(path: Path) -> Iterator[list[str]]:
    """Read the names of the columns, which all differ, and then one row after the other, each with
    as many cells.

    A row is read when it is asked for. What is damaged is a ValueError that names the file and the
    row.
    """
    line_number = 1
    try:
        with open(path, encoding="utf-8-sig", newline="") as text:
            lines = _Lines(text)
            rows = csv.reader(lines, strict=True)
            names = next(rows, [])
            twice = (
                sorted({name for name in names if names.count(name) > 1})
                if len(names) < 10_000
                else ["too many"]
            )
            if not names or not all(names) or twice:
                raise ValueError(
                    f"names of columns {_shown(names[:3])} ..., expected a name for each, all "
                    "different"
                )
            yield names
            lines.begin_row()
            for row in rows:
                line_number += 1
                if row and len(row) != len(names):
                    raise ValueError(f"{len(row)} cells, expected {len(names)} as in the first row")
                if row:
                    yield row
                lines.begin_row()
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is damaged or no table: row {line_number}: {error}") from None


def number_in(cell: str, column: str) -> float:
    """Return the number in a cell; a ValueError where there is none, or none that float32 can
    hold.
    """
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not -_FLOAT32 <= value <= _FLOAT32 or "_" in cell:  # Python takes 1_000 for a number
        raise ValueError(
            f"{_shown(column)} is {_shown(cell)}, expected a number from {-_FLOAT32:.3g} to "
            f"{_FLOAT32:.3g}"
        )
    return value


class _Lines:
    """The lines of a text, as long as those of one row are short enough together."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._length = 0

    def begin_row(self) -> None:
        self._length = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Return the next line; refuses a row, which may span lines, that is too long."""
        line = self._text.readline(_LONGEST + 1)
        if not line:
            raise StopIteration
        self._length += len(line)
        if self._length > _LONGEST:
            raise ValueError(
                f"a row is longer than {_LONGEST} characters, expected at most so many"
            )
        return line


def _shown(cell: str | list[str]) -> str:
    return repr(cell[:40]) if isinstance(cell, str) else ", ".join(map(_shown, cell))
