"""A job on an owner's machine takes no more memory and time than the owner allows, and ends with a clear error."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfw.data import limits as reading
from fedfw.deployment.limits import JobLimits, LimitError
from tests.processes import run_python

resource = pytest.importorskip("resource")
LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is used")
SMALL = JobLimits(memory=0.25)


def state() -> tuple[object, ...]:
    """What limits change in this process."""
    return (
        resource.getrlimit(resource.RLIMIT_AS),
        signal.getsignal(signal.SIGALRM),
        signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        reading.memory_limit(0),
    )


@LINUX
@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(1 << 30, dtype=torch.float32),
        lambda: torch.empty(1 << 29, dtype=torch.float64),
        lambda: np.empty(1 << 32, np.uint8),
        lambda: bytes(1 << 32),
        lambda: [bytes(1 << 24) for _ in range(256)],
    ],
)
def test_a_job_that_needs_more_memory_ends_with_the_limit(allocate: Callable[[], object]) -> None:
    before = state()
    message = r"the job needed more memory than memory = 0\.25 GiB under \[limits\] in the owner's file"
    with pytest.raises(LimitError, match=message), SMALL.enforced():
        allocate()
    assert state() == before
    with SMALL.enforced():
        assert torch.ones(1 << 20).sum() == 1 << 20


def forever() -> None:
    while True:
        pass


def forever_without_an_exception() -> None:
    while True:
        try:
            torch.ones(10).sum()
        except (ValueError, RuntimeError, OSError):
            continue


@pytest.mark.parametrize("job", [forever, forever_without_an_exception])
def test_a_job_without_an_end_ends_with_the_limit(job: Callable[[], None]) -> None:
    before = state()
    message = r"the job took longer than seconds = 0\.01 under \[limits\] in the owner's file"
    with pytest.raises(LimitError, match=message), JobLimits(seconds=0.01).enforced():
        job()
    assert state() == before


STUCK = """
import hashlib
from fedfw.deployment import limits
limits.GRACE = 0.05
try:
    with limits.JobLimits(seconds=0.05).enforced():
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # hours, in which Python runs no instruction
finally:
    print("it went on")
"""


def test_a_process_that_does_not_return_to_python_is_ended_and_its_log_says_where() -> None:
    done = run_python(["-c", STUCK], check=False)
    assert done.returncode == 1
    assert "Timeout (0:00:00.1" in done.stdout + done.stderr
    assert "it went on" not in done.stdout


def test_other_errors_pass_and_everything_is_as_before() -> None:
    before = state()
    for error in (RuntimeError("a value of the data"), OSError("no such file"), ValueError("3")):
        with pytest.raises(type(error), match=str(error)), JobLimits().enforced():
            raise error
    with JobLimits(data_memory=4.0).enforced():
        assert reading.memory_limit(0) == 4 << 30
    assert state() == before


def test_a_thread_has_the_memorys_limit_alone() -> None:
    """An alarm interrupts the main thread; elsewhere nothing is interrupted, and nothing fails."""
    found: list[object] = []

    def job() -> None:
        with JobLimits(seconds=0.001).enforced():
            found.append(sum(range(200_000)))

    thread = threading.Thread(target=job)
    thread.start()
    thread.join()
    assert found == [19_999_900_000]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 0.0}, "memory=0.0, expected a number above 0 and at most 1048576"),
        ({"seconds": -1.0}, "seconds=-1.0, expected a number above 0 and at most 10000000"),
        ({"data_memory": 2.0**21}, "data_memory=2097152.0, expected a number above 0 and at most 1048576"),
    ],
)
def test_limits_are_positive_numbers(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JobLimits(**options)
