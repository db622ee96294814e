"""The program of `fedfw.data.limits`: KIND PATH FOLDER BYTES NAME ... puts arrays into a folder,
prints their names.

It imports nothing of fedfw, whose modules take memory of their own.
"""

import csv
import json
import math
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

try:
    import resource
except ImportError:  # without it this process has no limits
    resource = None  # type: ignore[assignment]

Arrays = dict[str, Any]
_SECONDS = 600
"""Of processor time, for files that go on for ever."""
_MOST_COLUMNS = 1 << 18
"""Of a table: each takes time and memory of its own where names and inputs are looked at."""
_STATUS = Path("/proc/self/statm")
_FLOAT32 = float(np.finfo(np.float32).max)


def read_npz(path: str, names: list[str]) -> Arrays:
    """Return the arrays of these names."""
    limit_memory()
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in names}


def read_mat(path: str, names: list[str]) -> Arrays:
    """Return the arrays of these names; names such as "variable.field.field" go into structs."""
    from scipy.io import loadmat

    limit_memory()
    content = loadmat(path, variable_names={name.partition(".")[0] for name in names})
    arrays = {}
    for name in names:
        variable, *fields = name.split(".")
        try:
            value = content[variable]
            for field in fields:
                value = value[field].item()  # MATLAB's struct is an array of one entry
        except (KeyError, IndexError, ValueError):
            raise ValueError(f"expected an array {name}") from None
        arrays[name] = value
    return arrays


def read_libsvm(path: str, names: list[str]) -> Arrays:
    """Return the parts of a CSR matrix, its number of columns and the labels."""
    from sklearn.datasets import load_svmlight_file

    limit_memory()
    rows, labels = load_svmlight_file(path)
    columns = np.array(rows.shape[1])
    return {
        "data": rows.data,
        "indices": rows.indices,
        "indptr": rows.indptr,
        "columns": columns,
        "labels": labels,
    }


def read_csv(path: str, names: list[str]) -> Arrays:
    """Return the inputs (rows, features) in float32, the names of the features, and the columns of
    these names: numbers where every cell is one, texts otherwise.
    """
    limit_memory()
    with open(path, encoding="utf-8-sig", newline="") as text:
        rows = csv.reader(text, strict=True)
        try:
            header = next(rows, [])
            validate_header(header, names)
            if len(header) == len(names):
                raise ValueError(f"no column beside {', '.join(header)[:100]}, expected inputs")
            features = [name for name in header if name not in names]
            inputs = array("f")
            texts: dict[str, list[str]] = {name: [] for name in names}
            for row in filter(None, rows):
                if len(row) != len(header):
                    raise ValueError(f"{len(row)} cells, expected {len(header)} as in line 1")
                cells = dict(zip(header, row, strict=True))
                inputs.extend(parse_number(cells[name], name) for name in features)
                keep_texts(cells, texts)
        except (ValueError, csv.Error) as error:
            raise ValueError(f"line {rows.line_num}: {error}") from None
    # The prefix keeps a column named "inputs" or "features" apart from these.
    columns = {f"column {name}": numbers_or_texts(column) for name, column in texts.items()}
    shaped = np.asarray(inputs, np.float32).reshape(-1, len(features))
    return {"inputs": shaped, "features": np.array(features), **columns}


def read_columns(path: str, names: list[str]) -> Arrays:
    """Return the columns of these names alone: numbers where every cell is one, texts otherwise."""
    limit_memory()
    texts: dict[str, list[str]] = {name: [] for name in names}
    with open(path, encoding="utf-8-sig", newline="") as text:
        rows = csv.reader(text, strict=True)
        try:
            header = next(rows, [])
            validate_header(header, names)
            for row in filter(None, rows):
                if len(row) != len(header):
                    raise ValueError(f"{len(row)} cells, expected {len(header)} as in line 1")
                keep_texts(dict(zip(header, row, strict=True)), texts)
        except (ValueError, csv.Error) as error:
            raise ValueError(f"line {rows.line_num}: {error}") from None
    return {name: numbers_or_texts(column) for name, column in texts.items()}


def keep_texts(cells: dict[str, str], texts: dict[str, list[str]]) -> None:
    """Append a row's cells to the columns of their names; refuse empty ones."""
    for name, column in texts.items():
        if not cells[name]:
            raise ValueError(f"{name!r} is empty, expected a value")
        column.append(sys.intern(cells[name]))  # equal texts take memory once


def validate_header(header: list[str], names: list[str]) -> None:
    """Refuse a header with an empty name, a name twice or too many names, and one without a column
    of ``names``.
    """
    shown = ", ".join(header)[:100]
    if not header or not all(header) or len(set(header)) < len(header):
        raise ValueError(f"columns {shown!r}, expected a name for each, all different")
    if len(header) > _MOST_COLUMNS:
        raise ValueError(f"{len(header)} columns, expected at most {_MOST_COLUMNS}")
    for name in names:
        if name not in header:
            raise ValueError(f"no column {name!r}, expected one of {shown}")


def numbers_or_texts(column: list[str]) -> Any:
    """Return (rows,) float64 where every cell is a number, else texts."""
    try:
        return np.array([parse_number(cell, "") for cell in column])
    except ValueError:
        return np.array(column)


def parse_number(cell: str, name: str) -> float:
    """Return the number in a cell of a column; refuse one that float32 cannot hold."""
    try:
        value = float(cell)
    except ValueError:
        value = math.nan  # for which the comparison below is false
    if not abs(value) <= _FLOAT32 or "_" in cell:  # Python takes 1_000 for a number
        raise ValueError(f"{name[:40]!r} is {cell[:40]!r}, expected a number that float32 holds")
    return value


def limit_memory() -> None:
    """Limit this process to the memory that it has and the bytes of its fourth argument, and to
    _SECONDS of processor time; without Linux's /proc nothing is limited.
    """
    if resource is None or not _STATUS.exists():
        return
    pages = int(_STATUS.read_text().split()[0])  # of this process, the first number in the file
    most = pages * resource.getpagesize() + int(sys.argv[4])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))


def main() -> None:
    """Read a file, write its arrays into a folder as 0.npy, 1.npy, ... and print their names as
    JSON; exit with 3 for a damaged file, and with 4 where the memory is not enough.

    The arguments are the kind of file, its path, the folder, the bytes allowed and names of arrays.
    """
    readers: dict[str, Callable[[str, list[str]], Arrays]] = {
        "mat": read_mat,
        "npz": read_npz,
        "libsvm": read_libsvm,
        "csv": read_csv,
        "columns": read_columns,
    }
    try:
        arrays = readers[sys.argv[1]](sys.argv[2], sys.argv[5:])
        for i, array in enumerate(arrays.values()):
            np.save(Path(sys.argv[3]) / f"{i}.npy", array, allow_pickle=False)
        print(json.dumps(list(arrays)))
    except MemoryError:
        sys.exit(4)
    except Exception as error:  # whatever libraries raise where bytes are damaged
        print(error)
        sys.exit(3)


if __name__ == "__main__":
    main()
