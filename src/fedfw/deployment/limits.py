"""Limits of a job on an owner's machine: memory and time, whatever a server asks for.

A job is what a node does for one message: it builds the task, reads the data and computes an
answer. Memory is limited by the operating system (``setrlimit``), time by an alarm. Where neither
is available, as on Windows, jobs are not limited.
"""

import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fedfw.data.limits import GIB, allow_memory
from fedfw.options import check_options, option
from fedfw.portable import limited_memory

GRACE = 60.0
"""Seconds after which a process ends that does not return to Python when its time is up."""
_AGAIN = 0.5
"""Seconds between an alarm and the next one: Python drops an exception that is raised in a callback
of its garbage collector, and an app's own code may catch it.
"""
_OUT_OF_MEMORY = ("allocate memory", "not enough memory", "out of memory", "can't start new thread")
"""Parts of the texts of torch's and the system's errors where they are no `MemoryError`."""


class LimitError(Exception):
    """A job has taken more memory or time than its owner allows."""


@dataclass(frozen=True)
class JobLimits:
    """Limits of a job.

    Examples
    --------
    >>> JobLimits().seconds
    600.0
    >>> JobLimits(memory=0.0)
    Traceback (most recent call last):
        ...
    ValueError: memory=0.0, expected a number above 0 and at most 1048576
    """

    memory: Annotated[
        float,
        option(
            "GiB of memory that a job may take beside what its process has already", gt=0, le=2**20
        ),
    ] = 8.0
    seconds: Annotated[float, option("seconds that a job may take", gt=0, le=10**7)] = 600.0
    data_memory: Annotated[
        float | None,
        option(
            "GiB of memory that the reader of a file may take",
            otherwise="4 times the file's size or 1 GiB, the larger",
            gt=0,
            le=2**20,
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Limit what is done within the context.

        Raises
        ------
        LimitError
            When the memory or the time is used up.
        """
        with ExitStack() as limits:
            limits.enter_context(allow_memory(self.data_memory))
            limits.enter_context(limited_memory(int(self.memory * GIB)))
            limits.enter_context(_limited_time(self.seconds))
            try:
                yield
            except (MemoryError, RuntimeError, OSError) as error:
                message = str(error).lower()
                is_memory = any(part in message for part in _OUT_OF_MEMORY)
                if not isinstance(error, MemoryError) and not is_memory:
                    raise
                raise LimitError(
                    f"the job needed more memory than memory = {self.memory:g} GiB under [limits] "
                    "in the owner's file"
                ) from error


@contextmanager
def _limited_time(seconds: float) -> Iterator[None]:
    """Raise `LimitError` in the context after so many seconds; in other threads than the main one,
    and on systems without interval timers, the time is not limited.
    """
    if (
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    is_running = True

    def interrupt(number: int, frame: Any) -> None:
        # An alarm may still be on its way when the context ends; it is then ignored.
        if is_running:
            raise LimitError(
                f"the job took longer than seconds = {seconds:g} under [limits] in the owner's file"
            )

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.getitimer(signal.ITIMER_REAL)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
        # Python calls the handler before its next instruction, which a long computation of a
        # library delays. A second timer, outside of Python, then writes the stack to the log and
        # ends the process.
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=sys.__stderr__)
        yield
    finally:
        is_running = False  # first of all: an alarm must not interrupt what follows
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
