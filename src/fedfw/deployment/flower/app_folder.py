"""The folder of an app that `fedfw deploy init` wrote and a user changed: its settings and its
task.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from flwr.common.config import flatten_dict, get_project_config

from fedfw.deployment.flower.bundles import Bundle
from fedfw.deployment.task import Task
from fedfw.options import nearest

PROJECT = "pyproject.toml"
TABLE = "[tool.flwr.app.config]"


@dataclass(frozen=True)
class AppFolder:
    """An app on disk.

    Parameters
    ----------
    path : Path
        Its folder.
    config : dict of str to object
        The settings of its ``pyproject.toml``.
    module : str
        The module of the server's half, which also has the function ``make_task``.
    """

    path: Path
    config: dict[str, Any]
    module: str

    @classmethod
    def read(cls, path: Path) -> AppFolder:
        """Read a folder; one that Flower could not pack is refused.

        Parameters
        ----------
        path : Path
            With a ``pyproject.toml`` as ``fedfw deploy init`` writes it.
        """
        project = path / PROJECT
        if not project.is_file():
            raise ValueError(
                f"{path} has no {PROJECT}, expected a folder that 'fedfw deploy init' wrote"
            )
        try:
            app = get_project_config(path)["tool"]["flwr"]["app"]
            Bundle.read(path)
        except ValueError as error:
            raise ValueError(f"{project}: {_one_line(error)}") from None
        return cls(
            path, flatten_dict(app.get("config")), app["components"]["serverapp"].partition(":")[0]
        )

    def settings(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the app's settings with some changed; Flower changes only those that the app
        lists.

        Parameters
        ----------
        changes : mapping
            Values by their keys.
        """
        for key in changes:
            if key not in self.config:
                raise ValueError(
                    f"{self.path / PROJECT}: {key!r} is missing{nearest(key, self.config)}, "
                    f"expected it in {TABLE}"
                )
        return self.config | dict(changes)

    def make_task(self, config: Mapping[str, Any]) -> Task:
        """Return what the app's own code trains with these settings; that code runs in this
        process.

        Parameters
        ----------
        config : mapping
            What `settings` returns.
        """
        with self.locate_errors():
            if str(self.path.absolute()) not in sys.path:
                sys.path.insert(0, str(self.path.absolute()))
            writes_no_bytecode = sys.dont_write_bytecode
            sys.dont_write_bytecode = True  # no __pycache__ in a folder that may be packed
            try:
                app = import_module(self.module)
            finally:
                sys.dont_write_bytecode = writes_no_bytecode
            if not hasattr(app, "make_task"):
                raise ValueError(
                    f"{self.module} has no make_task, expected the function that server_app is "
                    "given"
                )
            task = app.make_task(config)
            if not isinstance(task, Task):
                raise ValueError(
                    f"make_task returned a {type(task).__name__}, expected a fedfw.deployment.Task"
                )
        return task

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Turn any exception raised within into a ValueError of one sentence that names the file
        and the line of the app.
        """
        try:
            yield
        except Exception as error:
            raise ValueError(f"{self.path}: {self._describe_error(error)}") from None

    def _describe_error(self, error: Exception) -> str:
        """Return an error in one line, with the innermost file and line of the app that it passed.

        A ValueError of fedfw's own is a sentence already; any other type needs its name.
        """
        description = f"{type(error).__name__}: {_one_line(error)}"
        if type(error) is ValueError:
            description = _one_line(error)
        places = [
            (frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
        ]
        if isinstance(error, SyntaxError):  # no frame has run: the error itself names the place
            description = f"{type(error).__name__}: {error.msg}"
            places.append((error.filename or "", error.lineno))
        root = self.path.absolute()
        in_app = [(Path(name), line) for name, line in places if Path(name).is_relative_to(root)]
        if not in_app:
            return description
        path, line = in_app[-1]
        return f"{description} ({path.relative_to(root)}, line {line})"


def _one_line(error: Exception) -> str:
    """Return an error's message with line breaks and runs of blanks as one blank."""
    return " ".join(str(error).split())
