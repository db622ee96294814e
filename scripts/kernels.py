"""Time each compiled kernel beside what torch computes without it, on one thread.

A line has the least processor time of five calls by C and of five by torch, which take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

import torch

import fedfw
from fedfw.cpu import softmax
from fedfw.linalg import lanczos
from fedfw.linalg.singular import top_singular


def compare(name: str, module: ModuleType, task: Callable[[], object]) -> None:
    """Print the milliseconds of a task with a module's compiled code and without it."""
    compiled = module._compiled
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(5):
        for with_c, found in times.items():
            module._compiled = compiled if with_c else None
            begin = time.process_time()
            task()
            found.append(1e3 * (time.process_time() - begin))
    module._compiled = compiled
    print(f"{name}: {min(times[True]):.1f} ms by C, {min(times[False]):.1f} ms by torch")


def main() -> None:
    """Compare the gradient of softmax regression and the oracle of the nuclear ball."""
    torch.set_num_threads(1)
    clients = [(torch.rand(6000, 784), torch.randint(10, (6000,))) for _ in range(10)]
    loss = torch.nn.functional.cross_entropy
    problem = fedfw.Problem(torch.nn.Linear(784, 10), loss, clients)
    x = problem.start.expand(10, -1).contiguous()
    who = problem.losses.all_clients(x.device)
    compare(
        "gradient of 10 x 6000 x 784",
        softmax,
        lambda: problem.losses.value_and_gradient(x, who, None),
    )
    for shape in ((1000, 1000), (2000, 500)):
        g = torch.randn(1, *shape)
        compare(f"oracle of the nuclear ball, {shape}", lanczos, lambda g=g: top_singular(g, 1e-4))


if __name__ == "__main__":
    main()
