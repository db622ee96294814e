"""Starts processes that share a run, as torchrun does, and waits for them."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from tests.processes import start_python


@dataclass(frozen=True)
class Ended:
    """How a rank ended."""

    status: int
    said: str


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(size: int, arguments: Sequence[str], timeout: float = 180) -> list[Ended]:
    """Run ``python ARGUMENTS`` as so many ranks; whoever does not end in time is killed."""
    alike = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ranks = [
        start_python(arguments, alike | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, together=True)
        for rank in range(size)
    ]
    ended = [rank.wait(timeout) for rank in ranks]
    return [Ended(rank.returncode, rank.stdout) for rank in ended]
