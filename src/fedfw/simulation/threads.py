"""How many threads a simulation uses: one where more bring nothing.

Threads wait for each other in every operation. On small problems that costs more than the other
cores bring, and beside another program it costs several times the work: with 10 clients of 100
samples and 650 parameters a round took 1.2 ms with one thread and 2.9 ms with two on two busy
cores, with 100 clients of 60 samples 3.1 and 18 ms.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedfw.problems.problem import Problem

SMALL = 10_000_000
"""Samples times parameters below which one thread is used: a gradient of all clients then takes a
few milliseconds.
"""
_CHOSEN_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def is_small(problem: Problem) -> bool:
    """Return whether a round of a problem on a CPU is too short for several threads."""
    if problem.start.device.type != "cpu":
        return False
    sizes = problem.losses.sizes
    samples = problem.n if sizes is None else int(sizes.sum())
    return samples * problem.start.numel() < SMALL


@contextmanager
def fitting_threads(problem: Problem) -> Iterator[None]:
    """Use one thread within for a small problem, unless the user has chosen a number.

    A number is chosen by ``OMP_NUM_THREADS`` or ``MKL_NUM_THREADS``, or by
    ``torch.set_num_threads`` if it is not the number of cores.
    """
    threads = torch.get_num_threads()
    cores = os.cpu_count() or 1
    # torch begins with as many threads as cores, or as physical cores.
    chosen = any(name in os.environ for name in _CHOSEN_BY) or threads not in (cores, cores // 2)
    if chosen or threads == 1 or not is_small(problem):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
