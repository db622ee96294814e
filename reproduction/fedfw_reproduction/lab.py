"""Where experiments are computed: each task once, kept by its content, several at a time if asked
for.
"""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

import torch
from tqdm import tqdm

from fedfw.data import MissingDataError, data_folder
from fedfw.errors import InfeasibleError, NonFiniteError
from fedfw.ranks import ALONE, Ranks
from fedfw.rounds.setup import usable_device
from fedfw_reproduction.kept import FILE, KeptResults
from fedfw_reproduction.schema import Identity

Json = dict[str, Any]
NOT_YET = "not yet"


@dataclass(frozen=True)
class Site:
    """Where the data lie and where to compute; no part of what is computed.

    Parameters
    ----------
    data_dir : str or None
        Folder of the data sets; None for the usual one.
    device : str
        cpu or cuda.
    """

    data_dir: str | None = None
    device: str = "cpu"

    @property
    def folder(self) -> Path:
        """The folder of the data sets."""
        return data_folder(None if self.data_dir is None else Path(self.data_dir))

    def check(self) -> None:
        """Refuse a device that cannot be used here."""
        usable_device(self.device)

    @property
    def machine(self) -> str:
        """The machine in words, for the report."""
        if torch.device(self.device).type == "cuda":
            return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
        return f"{os.cpu_count()} CPU cores, torch {torch.__version__}"


class Wanted(Protocol):
    """Something that a lab is asked for: a `Task`, or a `Later`."""

    @property
    def title(self) -> str:
        """What it is called while it runs."""

    @property
    def weight(self) -> float:
        """How long it takes compared with others, roughly: for the time that is left."""


@runtime_checkable
class Task(Wanted, Protocol):
    """A frozen dataclass that says all about one computation."""

    @abstractmethod
    def identity(self) -> Identity:
        """Return what is computed, in the frozen names under which its result is kept."""

    @abstractmethod
    def compute(self, site: Site) -> Json:
        """The numbers, in a form that JSON can hold."""


@runtime_checkable
class Later(Wanted, Protocol):
    """What becomes a task when the results of others are known, such as the best setting of a grid."""

    @property
    def needs(self) -> tuple[Task, ...]:
        """The others."""

    @abstractmethod
    def settled(self, results: Results) -> Task:
        """The task that it is."""


Results = Mapping[Wanted, Json]
"""What each task gave; ``{"not_run": why}`` where its data are missing."""


def was_run(result: Json) -> bool:
    """Whether there are numbers."""
    return "not_run" not in result


@dataclass(frozen=True)
class Lab:
    """Computes tasks.

    Parameters
    ----------
    folder : Path
        Its file ``results.jsonl`` holds a line a task: what is there is not computed again, so an
        interrupted call goes on where it stopped. Lines from another machine may be added.
    site : Site
        Where the data lie and where to compute.
    jobs : int
        Processes that are started here; one where several ranks share the tasks.
    only_kept : bool
        Compute nothing: tasks that are not among the kept results are "not run: not yet".
    seconds : float or None
        Begin no task after so many seconds; those that are left are "not run: not yet".
    ranks : Ranks
        The processes that share the tasks. The first one reads and keeps the results.
    """

    folder: Path
    site: Site = Site()
    jobs: int = 1
    only_kept: bool = False
    seconds: float | None = None
    ranks: Ranks = ALONE

    def run(self, wanted: Sequence[Wanted]) -> Results:
        """The results of all that is wanted and of what it needs, each computed once."""
        try:
            return self._run(wanted)
        finally:
            self.kept.pack()

    @cached_property
    def kept(self) -> KeptResults:
        """The results in the folder's file."""
        return KeptResults(self.folder / FILE)

    def _run(self, wanted: Sequence[Wanted]) -> Results:
        todo = list(dict.fromkeys(one for each in wanted for one in (*_needs(each), each)))
        found: dict[Wanted, Json] = {}
        for one in todo:
            if _ready(one, found) and (result := self._kept(_settled(one, found))) is not None:
                found[one] = result
        if self.ranks.size > 1:
            kept = self.ranks.broadcast_object(
                [(i, found[one]) for i, one in enumerate(todo) if one in found]
            )
            found = {todo[i]: result for i, result in kept}
        missing = [one for one in todo if one not in found]
        if not self.only_kept:
            progress = _Progress(
                missing, kept=len(found), stream=None if self.ranks.first else io.StringIO()
            )
            for one, result in self._computed(missing, found, progress):
                progress.finished(one)
                found[one] = result
            progress.close()
        why = "not among the kept results" if self.only_kept else "no time was left"
        return {one: found.get(one, {"not_run": NOT_YET, "why": why}) for one in todo}

    def _computed(
        self, missing: Sequence[Wanted], found: Results, progress: _Progress
    ) -> Iterator[tuple[Wanted, Json]]:
        """Results in the order in which they are there; the caller adds them to ``found``, where
        others need them.
        """
        end = time.monotonic() + (math.inf if self.seconds is None else self.seconds)

        def startable(one: Wanted) -> bool:
            return _ready(one, found) and time.monotonic() < end

        if self.jobs == 1 or len(missing) < 2:

            def compute(i: int) -> Json:
                progress.started(missing[i])
                task = _settled(missing[i], found)
                return self._kept(task) or _compute(task, self.site)

            for i, result in self.ranks.queue().results(
                len(missing), lambda i: startable(missing[i]), compute
            ):
                progress.started(missing[i])
                yield missing[i], self._keep(_settled(missing[i], found), result)
            return
        waiting = list(missing)

        def next_one() -> Wanted | None:
            one = next((one for one in waiting if startable(one)), None)
            if one is not None:
                waiting.remove(one)
                progress.started(one)
            return one

        threads = max(1, torch.get_num_threads() // self.jobs)
        # A fresh interpreter for each worker: a fork of one that has started CUDA or threads is
        # broken.
        with ProcessPoolExecutor(
            self.jobs, get_context("spawn"), torch.set_num_threads, (threads,)
        ) as pool:
            running: dict[Future[Json], tuple[Wanted, Task]] = {}
            try:
                while True:
                    while len(running) < self.jobs and (one := next_one()) is not None:
                        task = _settled(one, found)
                        if (result := self._kept(task)) is not None:
                            yield one, result
                        else:
                            with _deaf_children():
                                running[pool.submit(_compute, task, self.site)] = one, task
                    if not running:
                        return
                    for done in wait(running, return_when=FIRST_COMPLETED).done:
                        one, task = running.pop(done)
                        yield one, self._keep(task, done.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in active_children():
                    worker.terminate()
                raise

    def _kept(self, task: Task) -> Json | None:
        return self.kept.get(task.identity())

    def _keep(self, task: Task, result: Json) -> Json:
        # Data that are missing today may be there tomorrow: only what was run is kept.
        if was_run(result) and self.ranks.first:
            self.kept.add(task.identity(), result)
        return result


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that are started meanwhile do not hear Ctrl-C: who started them says one line and
    ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _needs(wanted: Wanted) -> tuple[Task, ...]:
    return wanted.needs if isinstance(wanted, Later) else ()


def _ready(wanted: Wanted, found: Results) -> bool:
    return all(task in found for task in _needs(wanted))


def _settled(wanted: Wanted, found: Results) -> Task:
    """The task that is wanted, now that what it needs is known."""
    if isinstance(wanted, Later):
        return wanted.settled(found)
    assert isinstance(wanted, Task)
    return wanted


def _compute(task: Task, site: Site) -> Json:
    """The task's result with the seconds that it took, or why there is none."""
    began = time.monotonic()
    try:
        return task.compute(site) | {"took": time.monotonic() - began, "machine": site.machine}
    except MissingDataError as error:
        return {"not_run": "no data", "why": str(error)}
    except (NonFiniteError, InfeasibleError) as error:
        return {"not_run": "blew up", "why": str(error)}


class _Progress:
    """Shows which tasks are running and how long is left: a line that changes on a terminal, a line
    a task in a file.

    Parameters
    ----------
    missing : sequence of Wanted
        What is to be computed.
    kept : int
        How many results are kept from before.
    stream : file, optional
        Where to; by default the standard error stream.
    """

    def __init__(self, missing: Sequence[Wanted], kept: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._count, self._done = len(missing), 0
        self._work = sum(task.weight for task in missing)
        self._running: list[Wanted] = []
        self._bar: Any = None
        if kept:
            self._stream.write(f"{kept} of {kept + len(missing)} tasks are kept from before\n")

    def started(self, task: Wanted) -> None:
        if task in self._running:
            return
        self._running.append(task)
        titles = "; ".join(one.title for one in self._running)
        self._show(f"{self._done + len(self._running)}/{self._count} {titles}")

    def finished(self, task: Wanted) -> None:
        self._done += 1
        self._running.remove(task)
        self._bar.n += task.weight  # shown when the next task begins

    def close(self) -> None:
        if self._bar is not None:
            self._bar.set_description_str(f"{self._done}/{self._count} done", refresh=False)
            self._bar.close()

    def _show(self, line: str) -> None:
        if self._bar is not None:
            self._bar.set_description_str(line)
            return
        live = self._stream.isatty()
        # The bar counts work, not tasks, so that the time left is right when tasks differ.
        self._bar = tqdm(
            desc=line,
            total=self._work,
            file=self._stream,
            dynamic_ncols=live,
            bar_format="{desc} [{elapsed}<{remaining}]" + ("" if live else "\n"),
        )
