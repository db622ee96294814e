"""Answers that are computed from an owner's data are counted on disk, whatever happens to processes."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from fedfw.deployment.answers import AnswerCount, CountError


@pytest.fixture
def count(tmp_path: Path) -> AnswerCount:
    made = AnswerCount(tmp_path / "owner" / "clinic.answers")
    made.create()
    return made


def test_as_many_are_counted_as_are_allowed(count: AnswerCount) -> None:
    assert [count.add(most=3) for _ in range(5)] == [True, True, True, False, False]
    assert AnswerCount(count.path).read() == 3
    assert count.add(most=4)
    assert count.path.read_bytes() == b"000000000004\n"
    assert count.path.stat().st_mode & 0o777 == 0o600
    count.create()  # a count that is there is kept
    assert count.read() == 4


def test_threads_and_processes_share_one_count(count: AnswerCount) -> None:
    allowed: list[bool] = []
    threads = [Thread(target=lambda: allowed.extend(count.add(most=50) for _ in range(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os._exit(sum(count.add(most=50) for _ in range(10)))
        children.append(child)
    counted = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sum(allowed) == 40
    assert sum(counted) == 10
    assert count.read() == 50


@pytest.mark.parametrize(
    "content", [b"3\n", b"000000000003", b"00000000000x\n", b"000000000003\n\n", b"-00000000003\n"]
)
def test_a_damaged_count_counts_nothing(content: bytes, count: AnswerCount) -> None:
    count.path.write_bytes(content)
    for use in (count.read, lambda: count.add(most=10)):
        with pytest.raises(CountError, match=r"clinic\.answers is damaged: expected a number of 12 digits, or nothing"):
            use()
    assert count.path.read_bytes() == content


def test_a_count_that_is_missing_is_no_empty_one(count: AnswerCount) -> None:
    count.path.unlink()
    message = (
        r"clinic\.answers cannot be used \(No such file or directory\): how many answers were computed from these data "
        r"is unknown\. If there were none yet, make an empty file: install -m 600 /dev/null .*clinic\.answers"
    )
    for use in (count.read, lambda: count.add(most=10)):
        with pytest.raises(CountError, match=message):
            use()
    count.path.touch(mode=0o600)
    assert count.add(most=10)
