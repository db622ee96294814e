"""The program of `fedfw.data.limits`: KIND PATH FOLDER BYTES NAME ... puts arrays into a folder,
prints their names.

It imports nothing of fedfw, whose modules take memory of their own.
"""

import json
import sys
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


def read_npz(path: str, names: list[str]) -> Arrays:
    """Return the arrays of these names."""
    limit_memory()
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in names}


def read_mat(path: str, names: list[str]) -> Arrays:
    """Return those arrays of these names that there are; names such as "variable.field.field" go
    into structs.
    """
    from scipy.io import loadmat

    limit_memory()
    variables = {name.partition(".")[0] for name in names}
    content = loadmat(path, variable_names=variables)
    found = {}
    for name in names:
        variable, *fields = name.split(".")
        try:
            value = content[variable]
            for field in fields:
                value = value[field].item()
        except (KeyError, IndexError, ValueError):
            continue
        found[name] = value
    return found


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


def limit_memory() -> None:
    """Let this process take so many bytes beside those that it has."""
    if resource is None:
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + int(sys.argv[4])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))


def main() -> None:
    """Read the file and write its arrays; the status is 3 for damaged files and 4 where memory did
    not suffice.
    """
    readers: dict[str, Callable[[str, list[str]], Arrays]] = {
        "mat": read_mat,
        "npz": read_npz,
        "libsvm": read_libsvm,
    }
    try:
        found = readers[sys.argv[1]](sys.argv[2], sys.argv[5:])
        for i, array in enumerate(found.values()):
            np.save(Path(sys.argv[3]) / f"{i}.npy", array, allow_pickle=False)
        print(json.dumps(list(found)))
    except MemoryError:
        sys.exit(4)
    except Exception as error:  # whatever libraries raise where bytes are damaged
        print(error)
        sys.exit(3)


if __name__ == "__main__":
    main()
