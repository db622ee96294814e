"""Python processes for tests, without the seconds in which each would import torch and Matplotlib.

The standard library's fork server has them and fedfw imported, one server a test worker. A fork runs
what ``python ARGUMENTS`` would run: a process with its own number, folder locks, signals, output and
exit status. Tests of the start of the interpreter itself, or of imports, use ``subprocess``.
"""

import atexit
import builtins
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
PRELOADED = [
    "matplotlib.pyplot",
    "torch._dynamo",  # which torch imports with the first gradient of a network, in two seconds
    "fedfw.algorithms.registry",
    "fedfw.cli.run",
    "fedfw.deployment.client",
    "fedfw.deployment.server",
    "fedfw.report.plots",
    "fedfw.simulation",
]

OUTPUTS = tempfile.TemporaryDirectory(prefix="processes-")


@dataclass(frozen=True)
class Started:
    """A process that runs, and the files of its output and its errors."""

    process: BaseProcess
    files: tuple[Path, ...]

    @property
    def pid(self) -> int | None:
        return self.process.pid

    def wait(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Return its exit status and what it printed; kill it if it does not end in time."""
        self.process.join(timeout)
        if not self.ended():
            self.kill()
            self.process.join()
        return subprocess.CompletedProcess(
            [], self.process.exitcode or 0, *[file.read_text() for file in self.files]
        )

    def ended(self) -> bool:
        """Return whether it ended by itself or was killed."""
        return self.process.exitcode is not None

    def kill(self) -> None:
        """End it as the system does that runs out of memory."""
        self.process.kill()


def start_python(
    arguments: Sequence[Any], env: Mapping[str, str] | None = None, together: bool = False
) -> Started:
    """Start ``python ARGUMENTS`` with these additions to the environment.

    With ``together`` errors are printed into the output.
    """
    folder = Path(tempfile.mkdtemp(dir=OUTPUTS.name))
    files = tuple(folder / name for name in ("output", "output" if together else "errors"))
    given = list(map(str, arguments)), dict(os.environ) | dict(env or {}), os.getcwd(), files
    process = _server().Process(target=_be_python, args=given)
    process.start()
    return Started(process, files)


def run_python(
    arguments: Sequence[Any], env: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Return what ``python ARGUMENTS`` ended with; with ``check`` its status has to be 0."""
    done = start_python(arguments, env).wait()
    assert not check or done.returncode == 0, done.stderr
    return done


@cache
def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    env = {
        "PYTHONHASHSEED": "7",  # another order of sets than here
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",  # more threads than cores would wait for each other
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, sys.path)]),
    }
    with mock.patch.dict(os.environ, env):
        forkserver.ensure_running()
    return context


def _be_python(
    arguments: list[str], env: dict[str, str], folder: str, files: tuple[Path, ...]
) -> None:
    """Be ``python ARGUMENTS`` in this folder."""
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.path[:0] = list(filter(None, env.get("PYTHONPATH", "").split(os.pathsep)))
    while arguments[0] == "-W":
        action, _, category, module = arguments[1].split(":")
        warnings.filterwarnings(action, category=getattr(builtins, category), module=module)  # type: ignore[arg-type]
        arguments = arguments[2:]
    sys.argv = arguments[1:] if arguments[0] == "-m" else arguments
    try:
        if arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        elif arguments[0] == "-m":
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(arguments[0]).parent))
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
