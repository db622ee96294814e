"""Which ranks are still there: what each leaves in the store when it ends, and its process."""

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_LAST_WORDS = 2.0
"""Seconds that a rank that lost another one waits to hear which of them are left."""
_LONGEST_WORDS = 300
"""Characters of the reason that a rank sends when it ends: JSON takes up to twelve bytes for each.
"""
_ENDED = "fedfw/ended"


class Presence:
    """The ranks of a run, as far as one of them sees whether the others are still there.

    Parameters
    ----------
    store : torch.distributed.Store or None
        Where ranks leave messages; None for a process group that the caller made.
    rank, size : int
        The number of this rank, and how many there are.
    processes : sequence of int
        The process ids of all ranks, if they are on this machine; else empty.
    """

    def __init__(self, store: Any, rank: int, size: int, processes: Sequence[int] = ()) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._processes = processes

    def leave(self, why: str, lost: bool = False) -> None:
        """Leave a message why this rank ends before its work is done; ``lost`` says that it lost
        another one.
        """
        words = json.dumps({"why": why[:_LONGEST_WORDS], "lost": lost})
        if self._store is not None:
            with suppress(RuntimeError):  # the store may be on a machine that is gone
                self._store.set(f"{_ENDED}/{self._rank}", words)

    def is_one_gone(self) -> bool:
        """Return whether another rank left a message, or its process is gone, where that can be
        seen from here.
        """
        if self._messages().keys() - {self._rank}:
            return True
        return any(has_ended(pid) for pid in self._processes)

    def describe_loss(self) -> str:
        """Return a sentence on which ranks ended and why; the empty text without a store."""
        if self._store is None:
            return ""
        if in_main_thread():
            # torchrun ends all ranks now: first a message why.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.leave("lost contact with another rank", lost=True)
        deadline = time.monotonic() + _LAST_WORDS
        messages = self._messages()
        while len(messages) < self._size and time.monotonic() < deadline:
            time.sleep(0.05)
            messages = self._messages()
        endings = [
            f"rank {rank} ended: {message['why']}"
            for rank, message in messages.items()
            # Ranks that only lost contact are not the cause.
            if not message["lost"]
        ]
        silent_ranks = ", ".join(str(rank) for rank in range(self._size) if rank not in messages)
        if silent_ranks:
            endings.append(
                f"rank {silent_ranks} is gone: its process or its machine ended without a word"
            )
        return "; ".join(endings)

    def _messages(self) -> dict[int, dict[str, Any]]:
        """Return the messages that ranks left when they ended, by rank."""
        messages = {}
        for rank in range(self._size):
            # The store may be on a machine that is gone, and a message be cut.
            with suppress(RuntimeError, ValueError):
                if self._store is not None and self._store.check([f"{_ENDED}/{rank}"]):
                    messages[rank] = json.loads(self._store.get(f"{_ENDED}/{rank}"))
        return messages


def in_main_thread() -> bool:
    """Return whether signals can be handled here."""
    return threading.current_thread() is threading.main_thread()


def has_ended(pid: int) -> bool:
    """Return whether a process of this machine is gone, or has ended and waits for its parent."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def process_namespace() -> str | None:
    """Return a text that is equal for two processes which see each other in /proc; None without a
    /proc that shows this process.
    """
    with suppress(OSError):
        # Otherwise /proc shows the processes of another namespace.
        if os.readlink("/proc/self") == str(os.getpid()):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return boot + os.readlink("/proc/self/ns/pid")
    return None
