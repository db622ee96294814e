"""Shared runs that fail: ``python -m tests.simulation.failing_runs HOW [FOLDER]``.

HOW is ``killed`` or ``nan`` for a client of rank 1 that ends its process or whose loss is not a
number, ``refutes`` for one whose loss is not convex, or ``asks`` for runs that are not the same on
all ranks, and then for a callback that asks for the loss of all clients on one rank.
"""

import os
import signal
import sys
from pathlib import Path

import torch

import fedfw
from fedfw.ranks import ALONE

ROUNDS = 60


def take(how: str, folder: Path | None, ranks: fedfw.Ranks = ALONE, **options: object) -> fedfw.Run:
    """The run; with another HOW than those above it ends well."""
    calls = 0

    def fails(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls > 40 and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if calls > 40 and how == "nan":
            return x.sum() * float("nan")
        if how == "refutes":
            return 4 * torch.cos(3 * x).sum() + x.square().sum()
        return x.square().sum()

    clients = [lambda x: (x - 1).square().sum(), lambda x: (x + 2).square().sum(), fails]
    start = torch.full((3,), 0.1 * ranks.rank if how == "differs" else 0.0, dtype=torch.float64)
    problem = fedfw.Problem.from_losses(clients, start, convex=True, ranks=ranks)
    resume = bool(ranks.broadcast_object(folder is not None and folder.exists()))
    algorithm = fedfw.FedFW("l2:1", penalty=0.1)
    return fedfw.simulate(problem, algorithm, rounds=ROUNDS, out=folder, resume=resume, **options)


if __name__ == "__main__":
    with fedfw.join_ranks() as everybody:
        if sys.argv[1] == "asks":
            try:
                take("differs", None, everybody)
            except ValueError as error:
                print(error)
            take(
                "well",
                None,
                everybody,
                callbacks=lambda simulation: simulation.problem.value(simulation.xbar),
            )
        take(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None, everybody)
