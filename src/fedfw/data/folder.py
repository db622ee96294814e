"""Where the files lie."""

import os
import shlex
from pathlib import Path

from fedfw.data.base import Request
from fedfw.data.sources import SOURCES
from fedfw.environment import read_variable


class MissingDataError(ValueError):
    """A file of a data set that is not at hand; the message says where it was looked for and how to
    get it.
    """


def data_folder(data_dir: Path | None = None) -> Path:
    """Return the folder of all data sets: the argument, else $FEDFW_DATA, else fedfw in the user's
    cache folder.
    """
    if data_dir is not None:
        return data_dir
    from_environment = read_variable("FEDFW_DATA")
    if from_environment:
        return Path(from_environment)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedfw"


def how_to_get(name: str, data_dir: Path | None) -> str:
    """Return the command that downloads a data set."""
    if name not in SOURCES:
        return "it has no download, put it there"
    place = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    return f"get it with: fedfw data get {name}{place}"


def find_files(
    name: str, folder: str, layouts: tuple[tuple[str, ...], ...], data_dir: Path | None
) -> tuple[Path, ...]:
    """Return the files of the first layout (names in ``folder``) that is complete, else a
    `MissingDataError`.
    """
    place = data_folder(data_dir) / folder
    choices = [tuple(place / file for file in layout) for layout in layouts]
    for paths in choices:
        if all(path.is_file() for path in paths):
            return paths
    # The error names a file of the layout that has most of its files already.
    closest = max(choices, key=lambda paths: sum(path.is_file() for path in paths))
    missing = next(path for path in closest if not path.is_file())
    raise MissingDataError(
        f"{name}: no file {missing.name} in {missing.parent}; {how_to_get(name, data_dir)}"
    )


def find_own(request: Request) -> Path:
    """Return the path of a user's own file, which is the argument of the data set's name."""
    path = Path(request.argument).expanduser()
    if not request.argument:
        raise ValueError(f"{request.name} reads your own file, expected {request.name}:PATH")
    if not path.is_file():
        raise MissingDataError(f"{request.name}: no file {path.name} in {path.absolute().parent}")
    return path
