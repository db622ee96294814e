"""Where experiments are computed: each task once, kept by its content, several at a time if asked for."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch

from fedfw._version import __version__
from fedfw.data import MissingDataError
from fedfw.errors import NonFiniteError
from fedfw.simulation.files import write_atomically

Json = dict[str, Any]
NOT_YET = "not yet"


@dataclass(frozen=True)
class Site:
    """Where the data lie and where to compute; no part of what is computed."""

    data_dir: str | None = None
    device: str = "cpu"

    @property
    def machine(self) -> str:
        """In words, for the report."""
        if torch.device(self.device).type == "cuda":
            return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
        return f"{os.cpu_count()} CPU cores, torch {torch.__version__}"


class Task(Protocol):
    """A frozen dataclass that says all about one computation: its fields are the key of the cache."""

    @property
    def title(self) -> str: ...

    @property
    def weight(self) -> float:
        """How long it takes beside others, roughly: for the time that is left."""

    @abstractmethod
    def compute(self, site: Site) -> Json: ...


Results = Mapping[Task, Json]
"""What each task gave; ``{"not_run": why}`` where its data are missing."""


def was_run(result: Json) -> bool:
    """Whether there are numbers."""
    return "not_run" not in result


@dataclass(frozen=True)
class Lab:
    """Computes tasks.

    Parameters
    ----------
    cache
        Folder with one JSON file a task: what is there is not computed again, so an interrupted call goes on where it
        stopped. Results from another machine may be put there.
    jobs
        Processes.
    only_kept
        Compute nothing: tasks that are not in the cache are "not run: not yet".
    """

    cache: Path
    site: Site = Site()
    jobs: int = 1
    only_kept: bool = False

    def run(self, tasks: Sequence[Task]) -> Results:
        """The results of all tasks, each computed once."""
        todo = list(dict.fromkeys(tasks))
        found = {task: result for task in todo if (result := self._kept(task)) is not None}
        missing = [task for task in todo if task not in found]
        if self.only_kept:
            return found | {task: {"not_run": NOT_YET, "why": "not in the cache"} for task in missing}
        progress = _Progress(missing, len(found))
        for task, result in self._computed(missing, progress):
            seconds = progress.finished(task)
            if was_run(result):  # data that are missing today may be there tomorrow
                result |= {"machine": self.site.machine, "took": seconds}
                write_atomically(self._path(task), json.dumps(result, indent=1).encode())
            found[task] = result
        progress.close()
        return found

    def _computed(self, tasks: Sequence[Task], progress: _Progress) -> Iterator[tuple[Task, Json]]:
        if self.jobs == 1 or len(tasks) < 2:
            for task in tasks:
                progress.started(task)
                yield task, _compute(task, self.site)
            return
        threads = max(1, torch.get_num_threads() // self.jobs)
        # A fresh interpreter for each worker: a fork of one that has started CUDA or threads is broken.
        with ProcessPoolExecutor(self.jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
            waiting = iter(tasks)
            running: dict[Future[Json], Task] = {}
            try:
                while True:
                    for task in islice(waiting, self.jobs - len(running)):
                        progress.started(task)
                        running[pool.submit(_compute, task, self.site)] = task
                    if not running:
                        return
                    for done in wait(running, return_when=FIRST_COMPLETED).done:
                        yield running.pop(done), done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _kept(self, task: Task) -> Json | None:
        path = self._path(task)
        if not path.is_file():
            return None
        result: Json = json.loads(path.read_text())
        return result

    def _path(self, task: Task) -> Path:
        return self.cache / f"{hashlib.sha256(f'{__version__} {_described(task)}'.encode()).hexdigest()[:20]}.json"


def _described(value: Any) -> str:
    """A task in words, without what is None: an option that did not exist when it was computed changes nothing."""
    if is_dataclass(value):
        parts = ((f.name, getattr(value, f.name)) for f in fields(value))
        inner = ", ".join(f"{name}={_described(part)}" for name, part in parts if part is not None)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_described, value))})"
    return repr(value)


def _compute(task: Task, site: Site) -> Json:
    try:
        return task.compute(site)
    except MissingDataError as error:
        return {"not_run": "no data", "why": str(error)}
    except NonFiniteError as error:
        return {"not_run": "blew up", "why": str(error)}


class _Progress:
    """What is running and how long is left; one line that changes on a terminal, a line a task in a file."""

    def __init__(self, missing: Sequence[Task], kept: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._count, self._done = len(missing), 0
        self._left = sum(task.weight for task in missing)
        self._spent = 0.0
        self._begin = time.monotonic()
        self._running: dict[Task, float] = {}
        if kept:
            self._stream.write(f"{kept} of {kept + len(missing)} tasks are kept from before\n")

    def started(self, task: Task) -> None:
        self._running[task] = time.monotonic()
        self._say()

    def finished(self, task: Task) -> float:
        """The seconds it took."""
        self._done += 1
        self._left -= task.weight
        self._spent += task.weight
        return time.monotonic() - self._running.pop(task)

    def close(self) -> None:
        if self._live and self._count:
            self._stream.write("\n")

    def _say(self) -> None:
        left = ""
        if self._spent:
            left = f", about {_clock((time.monotonic() - self._begin) * self._left / self._spent)} left"
        running = "; ".join(task.title for task in self._running)
        line = f"{self._done + len(self._running)}/{self._count} {running}{left}"
        self._stream.write(f"\r{line[:150]:<150}" if self._live else line + "\n")
        self._stream.flush()


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
