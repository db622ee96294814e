"""A board in memory that all ranks of one machine can see: each writes on its own part, and reads those of the others.

Between two processes of one machine an exchange by gloo wakes four threads one after the other, which takes long where
all processors are busy. Here a rank copies its bytes to its part, writes the number of the exchange
beside them, and looks at the others' numbers until they have come as far. Every part has two places, which take turns:
nobody writes to a place again before everybody has begun the next exchange, and so has read what was there. A rank that
ends before its work is done leaves its last words beside them, which the others find while they wait.

The bytes must be there before the number is. Processors of the x86 family keep the order of what is written and of what
is read; others need not, and their ranks use gloo.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_FOLDER = Path("/dev/shm")  # a folder in memory
_PLACE = 2**20
"""Bytes of a place; longer tensors travel by gloo, where their length counts and not how soon somebody wakes up."""
_LINE = 64
"""Bytes in front of a place that hold its number: as many as processors hand to each other at a time."""
_WORDS = 4096 - _LINE
"""Bytes of a rank's last words at most; in front of them stands how many there are."""
AWAKE = 0.1
"""Seconds that a rank waits for the others before it goes to sleep: ranks that were divided well are hardly apart."""
_NAP = 1e-3
_LOOK_AROUND = 0.5
"""Seconds of a nap, and between two looks whether the others are still there."""
PATIENCE = timedelta(minutes=10)
"""How long a rank waits for the others in an exchange. A process that ended is noticed sooner; this is for those that
vanish or never come, and must be longer than any rank is busy with its clients."""
give_way = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Lets other threads of this processor go first."""

Exchange = Callable[[Any], list[Any]]
"""What this rank says -> what every rank says."""


class Board:
    """The board as one rank sees it.

    Parameters
    ----------
    memory : mmap
        Shared by all ranks, and zero in the beginning.
    rank, size : int
        The number of this rank, and how many there are.
    is_one_gone : callable
        Whether another rank is gone, or has left last words; it is asked now and then by a rank that waits.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int, is_one_gone: Callable[[], bool]) -> None:
        self._rank, self._is_one_gone, self._count = rank, is_one_gone, 0
        parts = torch.frombuffer(memory, dtype=torch.uint8).view(size, length_of(1))
        places = parts[:, : -_LINE - _WORDS].view(size, 2, _LINE + _PLACE)
        self._bodies, self._words = places[:, :, _LINE:], parts[:, -_WORDS:].numpy()
        self._numbers = [_first_number(places[:, turn]) for turn in (0, 1)]
        self._ends = _first_number(parts[:, -_LINE - _WORDS :])

    def __deepcopy__(self, copied: dict[int, Any]) -> Board:
        return self  # a copy would be memory that nobody else sees

    @staticmethod
    def takes(x: Tensor) -> bool:
        """Whether a tensor in the host's memory is short enough; all ranks have tensors of one length."""
        return x.nbytes <= _PLACE

    def gather(self, x: Tensor) -> Tensor:
        """The tensors (size, ...) of all ranks, of which x is this rank's; all have one shape and type."""
        self._count += 1
        turn = self._count % 2
        bodies = self._bodies[:, turn, : x.nbytes]
        bodies[self._rank] = x.contiguous().view(-1).view(torch.uint8)
        self._numbers[turn][self._rank] = self._count
        self._wait(turn)
        return bodies.clone().view(x.dtype).view(len(bodies), *x.shape)

    def leave(self, words: bytes) -> None:
        """Leave last words, at least one byte: this rank ends before its work is done. The first ones stay."""
        if self._ends[self._rank]:
            return
        self._words[self._rank, : len(words)] = list(words[:_WORDS])
        self._ends[self._rank] = len(words[:_WORDS])

    def words_of(self, rank: int) -> bytes:
        """The last words of a rank; none where it has left none."""
        return self._words[rank, : int(self._ends[rank])].tobytes()

    def _wait(self, turn: int) -> None:
        """Until every rank has written: awake at first, because a processor that was put to sleep comes back slowly."""
        numbers, began = self._numbers[turn], time.monotonic()
        looks_from = began + AWAKE
        while int(numbers.min()) < self._count:
            now = time.monotonic()
            if self._ends.any() or now >= looks_from:
                # Who has written may have ended since: only then is a number missing for good.
                if self._is_one_gone() and int(numbers.min()) < self._count:
                    raise RuntimeError("another rank is gone")
                looks_from = max(looks_from, now + _LOOK_AROUND)
            if now > began + PATIENCE.total_seconds():
                raise RuntimeError(f"waited {PATIENCE} for another rank")
            if now < began + AWAKE:
                give_way()
            else:
                time.sleep(_NAP)


def length_of(size: int) -> int:
    """Bytes of a board for so many ranks."""
    return size * (2 * (_LINE + _PLACE) + _LINE + _WORDS)


def _first_number(parts: Tensor) -> npt.NDArray[np.int64]:
    """A view of the first eight bytes of each part (size, length) as a number."""
    numbers: npt.NDArray[np.int64] = parts[:, :8].view(torch.int64).numpy()[:, 0]
    return numbers


def share_board(rank: int, size: int, exchange: Exchange, is_one_gone: Callable[[], bool]) -> Board | None:
    """A board for all ranks, or None where they are on several machines, or on one that does not suit.

    Parameters
    ----------
    rank, size : int
        The number of this rank, and how many there are.
    exchange : callable
        By which the ranks agree.
    is_one_gone : callable
        Whether another rank is gone; see `Board`.
    """
    places = exchange(_whereabouts())
    if None in places or len(set(places)) > 1:
        return None
    length, token, path = length_of(size), secrets.token_hex(16), ""
    if rank == 0:
        path = _make_file(length, token)
    try:
        path, token = exchange([path, token])[0]
        memory = _map_file(path, length, token) if path else None
        seen = exchange(memory is not None)
    finally:
        if rank == 0 and path:
            os.unlink(path)  # whoever has mapped it keeps it, and nothing is left behind when the ranks end
    if not all(seen) or memory is None:
        return None
    if rank == 0:
        memory[: len(token)] = bytes(len(token))
    exchange(None)  # nobody writes before the token is gone
    return Board(memory, rank, size, is_one_gone)


def has_ended(pid: int) -> bool:
    """Whether a process of this machine is gone, or has ended and waits to be noticed by whoever started it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def _whereabouts() -> str | None:
    """The machine, since when it runs, and the part of its processes that this one can see; None where it won't do."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    with suppress(OSError):
        if os.readlink("/proc/self") == str(os.getpid()):  # else it shows the processes of others
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return None


def _make_file(length: int, token: str) -> str:
    """A file in memory that begins with the token; the empty text where there can be none."""
    try:
        number, path = tempfile.mkstemp(prefix="fedfw-", dir=_FOLDER)
    except OSError:
        return ""
    with os.fdopen(number, "wb") as file:
        try:
            os.posix_fallocate(number, 0, length)  # a full disk is noticed now, and not when a rank writes
            file.write(token.encode())
        except OSError:
            os.unlink(path)
            return ""
    return path


def _map_file(path: str, length: int, token: str) -> mmap.mmap | None:
    """The memory of the file; None where this rank sees no file that begins with the token."""
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), length)
    except (OSError, ValueError):
        return None
    return memory if memory[: len(token)] == token.encode() else None
