"""The board by which ranks of one machine exchange short tensors."""

from __future__ import annotations

import copy
import json
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfw.ranks import board, joined
from fedfw.ranks.board import Board, has_ended, share_board

DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8)


def boards_of(size: int, is_one_gone: Callable[[], bool] = lambda: False) -> list[Board]:
    memory = mmap.mmap(-1, board.length_of(size))
    return [Board(memory, rank, size, is_one_gone) for rank in range(size)]


def in_threads(each: Callable[[int], Any], size: int) -> list[Any]:
    """What every rank finds, each in a thread of its own."""
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        found[rank] = each(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


@settings(max_examples=20)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3)), min_size=1, max_size=30),
)
def test_everybody_reads_what_everybody_wrote(size: int, shapes: list[tuple[torch.dtype, list[int]]]) -> None:
    boards = boards_of(size)

    def given_by(rank: int, number: int) -> Tensor:
        dtype, shape = shapes[number]
        return torch.randint(0, 200, shape, generator=torch.Generator().manual_seed(31 * number + rank)).to(dtype)

    def each(rank: int) -> list[Tensor]:
        return [boards[rank].gather(given_by(rank, number)) for number in range(len(shapes))]

    for found in in_threads(each, size):
        for number, gathered in enumerate(found):
            assert torch.equal(gathered, torch.stack([given_by(rank, number) for rank in range(size)]))


def test_what_was_read_is_not_overwritten_by_later_exchanges() -> None:
    boards = boards_of(2)

    def each(rank: int) -> list[Tensor]:
        return [boards[rank].gather(torch.tensor([100 * number + rank])) for number in range(500)]

    for found in in_threads(each, 2):
        assert [one.flatten().tolist() for one in found] == [[100 * n, 100 * n + 1] for n in range(500)]


def test_long_tensors_are_not_taken() -> None:
    assert Board.takes(torch.zeros(board._PLACE, dtype=torch.uint8))
    assert not Board.takes(torch.zeros(board._PLACE + 1, dtype=torch.uint8))


def test_a_rank_that_waits_looks_around_and_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "AWAKE", 0.0)
    with pytest.raises(RuntimeError, match="another rank is gone"):
        boards_of(2, lambda: True)[0].gather(torch.zeros(3))
    monkeypatch.setattr(board, "PATIENCE", -board.PATIENCE)
    with pytest.raises(RuntimeError, match="waited"):
        boards_of(2)[0].gather(torch.zeros(3))


def test_a_rank_that_has_written_may_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "AWAKE", 0.0)

    def writes_and_ends() -> bool:
        other._bodies[1, 1, :8] = 7
        other._numbers[1][1] = 1
        return True

    boards = boards_of(2, writes_and_ends)
    other = boards[1]
    assert boards[0].gather(torch.zeros(8, dtype=torch.uint8)).tolist() == [[0] * 8, [7] * 8]


def test_last_words_are_found_by_those_who_wait() -> None:
    boards = boards_of(3, lambda: bool(boards[0].words_of(1)))
    assert [boards[0].words_of(rank) for rank in range(3)] == [b"", b"", b""]
    boards[1].leave(b"enough")
    boards[1].leave(b"more than enough")
    assert boards[0].words_of(1) == b"enough"  # the first words stay
    with pytest.raises(RuntimeError, match="another rank is gone"):
        boards[0].gather(torch.zeros(3))
    boards[2].leave(b"?" * 10**5)
    assert boards[0].words_of(2) == b"?" * board._WORDS


def test_there_is_room_for_all_of_the_words_that_a_rank_may_leave() -> None:
    longest = json.dumps({"why": "\U0001f600" * joined._LONGEST_WORDS, "lost": False})
    assert len(longest) <= board._WORDS


def test_a_copy_is_the_same_board() -> None:
    (mine,) = boards_of(1)
    assert copy.deepcopy(mine) is mine


def test_a_process_that_ended_is_seen_before_anybody_asks_for_its_status() -> None:
    assert not has_ended(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not has_ended(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(child.pid)  # it is still in the table of processes
    finally:
        child.communicate()
    assert has_ended(child.pid)


class Talk:
    """Lets threads exchange as ranks do; ``said`` may change what a rank says first, its whereabouts."""

    def __init__(self, size: int, said: dict[int, Any] | None = None) -> None:
        self._barrier, self._words, self._said = threading.Barrier(size), [[] for _ in range(size)], said or {}
        self._size = size

    def of(self, rank: int) -> Callable[[Any], list[Any]]:
        words: list[list[Any]] = self._words

        def exchange(value: Any) -> list[Any]:
            number = len(words[rank])
            words[rank].append(self._said.get(rank, value) if number == 0 else value)
            self._barrier.wait(60)
            return [words[other][number] for other in range(self._size)]

        return exchange


def shared(size: int, said: dict[int, Any] | None = None) -> list[Board | None]:
    talk = Talk(size, said)
    return in_threads(lambda rank: share_board(rank, size, talk.of(rank), lambda: False), size)


@pytest.mark.skipif(board._whereabouts() is None, reason="ranks use gloo on this kind of machine")
def test_ranks_of_one_machine_share_a_board_and_leave_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(board, "_FOLDER", tmp_path)  # where no other test makes files at the same time
    boards = shared(3)
    assert not list(tmp_path.iterdir())

    def each(rank: int) -> Tensor:
        mine = boards[rank]
        assert mine is not None
        return mine.gather(torch.tensor([rank]))

    assert [found.flatten().tolist() for found in in_threads(each, 3)] == [[0, 1, 2]] * 3


def test_ranks_elsewhere_have_no_board() -> None:
    assert shared(2, {1: "another machine"}) == [None, None]
    assert shared(2, {0: None}) == [None, None]


def test_without_room_in_memory_there_is_no_board(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(board, "_FOLDER", tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert shared(2) == [None, None]
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(board, "_FOLDER", tmp_path / "nowhere")
    assert shared(2) == [None, None]


def test_a_file_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "board"
    path.write_bytes(b"another token" + bytes(100))
    assert board._map_file(str(path), 64, "a token") is None
    assert board._map_file(str(path), 10**6, "another token") is None  # shorter than it must be
    assert board._map_file(str(tmp_path / "missing"), 64, "a token") is None
    memory = board._map_file(str(path), 64, "another token")
    assert memory is not None
