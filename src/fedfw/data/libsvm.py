"""LIBSVM text: a9a, mushrooms and a user's own file; plain, .gz or .bz2."""

import bz2
import gzip
import math
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.data.base import Data, Part, Request, every_fifth
from fedfw.data.folder import MissingDataError
from fedfw.data.limits import FACTOR, MemoryLimitError, MemoryMeter

ENDINGS = ("", ".gz", ".bz2")
_LONGEST = 1 << 24  # bytes of a line
_TEXT = 16  # bytes of text for an input of a published file, at most
_MOST_FEATURES = 1 << 30
# Bytes that are held at most, copies for classes and for dense inputs included: a line's label and its end, an entry's
# index and value, a dense input, and the words of the line that is being read for each of its bytes.
_LINE, _ENTRY, _DENSE, _WORDS = 128, 24, 4, 24
_FLOAT32 = float(np.finfo(np.float32).max)


def load_a9a(request: Request) -> Data:
    """123 binary features of a census; the file with .t is the test part."""
    train, test = map(_read_a9a, request.files, (32_561, 16_281))
    return Data(request.name, train, test, 2)


def _read_a9a(path: Path, samples: int) -> Part:
    rows, labels = read_libsvm(path, features=123, samples=samples)
    return Part(_dense(rows), _class_numbers(labels)[0])


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

    A line is a label and pairs INDEX:VALUE with indices that increase. They count from 1; where ``features`` is not
    given and some index is 0, they count from 0. What follows a # is a comment, and a first pair with the index qid is
    passed over. ``samples`` is given for published files of two classes: nothing else would show that lines are
    missing. What is damaged or too large is a ValueError that names the file and the line.
    """
    from scipy.sparse import csr_matrix

    meter = MemoryMeter(path)
    most_text = FACTOR * meter.limit
    if samples is not None and features is not None:
        most_text = _TEXT * samples * (features + 1)
    table = _Table(0 if features is None else 1, features or _MOST_FEATURES)
    try:
        for number, line in enumerate(_lines(path, most_text), 1):
            _check_size(meter, number, table, _WORDS * len(line))
            try:
                table.add(line.partition(b"#")[0])
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            _check_size(meter, number, table)
    except MemoryLimitError:
        raise
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or no LIBSVM text: {error}") from None
    first = min(1, table.lowest)
    shape = len(table.labels), features or max(1, table.highest + 1 - first)
    labels = np.frombuffer(table.labels) if table.labels else np.empty(0)
    if samples is not None and (len(labels), kinds := len(np.unique(labels))) != (samples, 2):
        raise ValueError(f"{path} is damaged: {len(labels)} samples, {kinds} kinds of labels, expected {samples} and 2")
    columns = np.array(table.columns, np.int32)
    columns -= np.int32(first)
    values = np.array(table.values, np.float32)
    ends = np.frombuffer(table.ends, np.int64)
    return csr_matrix((values, columns, ends), shape), labels


class _Table:
    """What has been read: as many labels as rows; the entries of row i are those from ends[i] to ends[i + 1]."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most  # indices that may stand in a line
        self.lowest, self.highest = most, 0  # indices that do
        self.labels, self.values, self.columns, self.ends = array("d"), array("f"), array("i"), array("q", [0])

    def add(self, line: bytes) -> None:
        """One more line; a ValueError says what is wrong with it."""
        if not (words := line.split()):
            return
        self.labels.append(_number(words[0], "label"))
        last = self.least - 1
        for word in words[2:] if words[1:] and words[1].startswith(b"qid:") else words[1:]:
            index, _, value = word.partition(b":")
            column = int(index) if index.isdigit() and len(index) < 20 else -1
            if not last < column <= self.most:
                expected = f"a whole number from {last + 1} to {self.most}: indices increase within a line"
                raise ValueError(f"index={_shown(index)}, expected {expected}")
            self.columns.append(column)
            self.values.append(_number(value, "value"))
            last = column
        if len(self.columns) > self.ends[-1]:
            self.lowest, self.highest = min(self.lowest, self.columns[self.ends[-1]]), max(self.highest, last)
        self.ends.append(len(self.columns))


def _check_size(meter: MemoryMeter, lines: int, table: _Table, more: int = 0) -> None:
    """Refuse what the lines take so far, as dense inputs, and so many bytes more."""
    held = lines * (_LINE + _DENSE * table.highest) + _ENTRY * len(table.columns) + more
    if held > meter.limit:
        meter.check(held, f"{lines} lines of {table.highest} features as dense inputs")


def _lines(path: Path, most: int) -> Iterator[bytes]:
    """The lines of a file that may be packed, while they are at most ``most`` bytes together."""
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
    with openers.get(path.suffix, open)(path, "rb") as text:
        left = most
        while line := text.readline(_LONGEST + 1):
            left -= len(line)
            if len(line) > _LONGEST:
                raise ValueError(f"a line is longer than {_LONGEST} bytes, expected at most so many")
            if left < 0:
                raise ValueError(f"the text is longer than {most} bytes, expected at most so many")
            yield line


def _number(word: bytes, name: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not -_FLOAT32 <= number <= _FLOAT32 or b"_" in word:  # Python takes 1_000 for a number
        raise ValueError(f"{name}={_shown(word)}, expected a number from {-_FLOAT32:.3g} to {_FLOAT32:.3g}")
    return number


def _shown(word: bytes) -> str:
    return repr(word[:40].decode("latin-1"))


def _in_one_piece(name: str, path: Path, rows: Any, labels: npt.NDArray[np.float64], numbers: bool = False) -> Data:
    if len(labels) < 2:
        raise ValueError(f"{path} has {len(labels)} samples, expected at least 2")
    kinds = np.unique(labels)
    if not numbers and len(kinds) >= 2 and (kinds == np.floor(kinds)).all():
        targets, classes = _class_numbers(labels)
    else:
        targets, classes = torch.from_numpy(labels).float(), None
    held_out = every_fifth(len(labels))
    train, test = (Part(_dense(rows[mask.numpy()]), targets[mask]) for mask in (~held_out, held_out))
    return Data(name, train, test, classes)


def _class_numbers(labels: npt.NDArray[np.float64]) -> tuple[Tensor, int]:
    """(samples,) class numbers from 0 in the order of the labels, and how many there are."""
    kinds, numbers = np.unique(labels, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), len(kinds)


def _dense(rows: Any) -> Tensor:
    return torch.from_numpy(rows.toarray())
