"""A shared run in which a client of rank 1 fails: ``python -m tests.simulation.failing_runs HOW [FOLDER]``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import fedfw

if __name__ == "__main__":
    calls = 0

    def fails(x: torch.Tensor) -> torch.Tensor:
        global calls
        calls += 1
        if calls > 40 and sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if calls > 40 and sys.argv[1] == "nan":
            return x.sum() * float("nan")
        return x.square().sum()

    clients = [lambda x: (x - 1).square().sum(), lambda x: (x + 2).square().sum(), fails]
    with fedfw.join_ranks() as everybody:
        small = fedfw.Problem.from_losses(clients, torch.zeros(3, dtype=torch.float64), convex=True, ranks=everybody)
        where = Path(sys.argv[2]) if len(sys.argv) > 2 else None
        fedfw.simulate(small, fedfw.FedFW("l2:1", penalty=0.1), rounds=500, out=where)
