"""A promise closes at the first error and stays closed, so that failures tell a server nothing twice."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from fedfw.deployment.promise import KILLED, Promise, PromiseClosedError
from fedfw.errors import MessageError
from tests.processes import run_python


@pytest.fixture
def promise(tmp_path: Path) -> Promise:
    return Promise(tmp_path / "owner", "clinic")


def work(promise: Promise, order: str, error: BaseException | None = None) -> None:
    with promise.at_work(order):
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [ValueError("a value"), MemoryError(), RuntimeError("x"), OSError(28, "full")])
def test_any_error_closes_the_promise_until_its_owner_acts(promise: Promise, error: Exception) -> None:
    work(promise, "the first order")
    with pytest.raises(PromiseClosedError) as raised:
        work(promise, "the second order", error)
    assert raised.value.__cause__ is error
    for _ in range(2):
        with pytest.raises(PromiseClosedError) as again:
            work(promise, "the third order")
        assert again.value.__cause__ is None
    closing = promise.reopen()
    assert closing is not None
    assert closing.order == "the second order"
    assert type(error).__name__ in closing.reason
    work(promise, "the fourth order")
    assert promise.reopen() is None


def test_an_order_that_makes_no_sense_changes_nothing(promise: Promise) -> None:
    with pytest.raises(MessageError, match="nonsense"):
        work(promise, "an order", MessageError("nonsense"))
    assert promise.settle() is None
    work(promise, "another")


@pytest.mark.parametrize("how", ["os._exit(1)", "os.kill(os.getpid(), 9)", "raise KeyboardInterrupt", "sys.exit(0)"])
def test_a_process_that_ends_at_work_closes_the_promise(promise: Promise, how: str) -> None:
    code = (
        "import os, sys; from pathlib import Path; from fedfw.deployment.promise import Promise\n"
        f"with Promise(Path({str(promise.folder)!r}), 'clinic').at_work('the order'): {how}"
    )
    run_python(["-c", code], check=False)
    assert promise.closing() is None  # nobody has looked yet
    with pytest.raises(PromiseClosedError):
        work(promise, "the next order")
    closing = promise.closing()
    assert closing is not None
    assert (closing.order, closing.reason) == ("the order", KILLED)
    assert promise.settle() == closing
    promise.reopen()
    work(promise, "the next order")


def test_a_promise_that_cannot_be_closed_in_writing_is_closed_all_the_same(
    promise: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("fedfw.deployment.promise.write_atomically", full)
        with pytest.raises(OSError, match="No space left"):
            work(promise, "the order", ValueError("x"))
    with pytest.raises(PromiseClosedError):
        work(promise, "the next order")


def test_a_file_that_cannot_be_read_is_a_closed_promise(promise: Promise) -> None:
    work(promise, "an order")
    (promise.folder / "clinic.closed").write_bytes(b"\xff{")
    with pytest.raises(PromiseClosedError):
        work(promise, "another order")
    closing = promise.closing()
    assert closing is not None
    assert "cannot be read" in closing.reason


def test_one_order_at_a_time(promise: Promise) -> None:
    """Another one waits, and does not take the mark of the first for one that was left behind."""
    done: list[str] = []

    def other() -> None:
        work(promise, "another order")
        done.append("another")

    thread = Thread(target=other)
    with promise.at_work("one order"):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        done.append("one")
    thread.join()
    assert done == ["one", "another"]
    assert promise.settle() is None


def test_nobody_else_can_read_why(promise: Promise) -> None:
    with pytest.raises(PromiseClosedError):
        work(promise, "an order", ValueError("a value of the data"))
    for path in promise.folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert promise.folder.stat().st_mode & 0o777 == 0o700
