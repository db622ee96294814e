"""One gradient of softmax regression on a GPU, and one simulated round of FedFW.

    python -m benchmarks.gpu            10 clients x 6,000 samples x 784 features; needs CUDA and Triton

Each way to work out loss and gradient is replayed as a CUDA graph, and the kernel's error against float64 is printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch

import fedfw
from benchmarks.common import machine, markdown
from fedfw.bench.contenders import fedfw_l1
from fedfw.bench.tasks import CLASSES, TASKS
from fedfw.problems.fused import can_fuse, fused_softmax_gradient


def replayed_ms(function: Callable[[], Any], times: int = 200) -> float:
    """Milliseconds of a function of CUDA tensors, as a graph."""
    for _ in range(5):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times * 1e3


def two_products(A: torch.Tensor, y: torch.Tensor, W: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scores = torch.bmm(A, W.mT) + b[:, None]
    losses = scores.logsumexp(2) - scores.gather(2, y.unsqueeze(2)).squeeze(2)
    R = (scores.softmax(2) - torch.nn.functional.one_hot(y, CLASSES)) / A.shape[1]
    return losses.mean(1), torch.bmm(R.mT, A), R.sum(1)


def round_ms() -> float:
    marks: list[float] = []
    problem = TASKS["mnist"].problem()
    algorithm = fedfw_l1(TASKS["mnist"])
    note = [lambda simulation: marks.append(time.perf_counter())]
    fedfw.simulate(problem, algorithm, 300, eval_every=10**9, device="cuda", callbacks=note)
    return 1e3 * median(b - a for a, b in pairwise(marks))


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("this needs a CUDA device")
    A, y = (t.cuda() for t in TASKS["mnist"].data())
    W, b = 0.05 * torch.randn(len(A), CLASSES, A.shape[2], device="cuda"), torch.zeros(len(A), CLASSES, device="cuda")
    R, copy = torch.randn(len(A), A.shape[1], CLASSES, device="cuda"), torch.empty_like(A)
    ways: dict[str, Callable[[], Any]] = {
        "the two bare products": lambda: (torch.bmm(A, W.mT), torch.bmm(R.mT, A)),
        "loss and gradient from two products": lambda: two_products(A, y, W, b),
        "copying the samples once": lambda: copy.copy_(A),
    }
    if can_fuse(A, CLASSES, y):
        ways["loss and gradient in one pass"] = lambda: fused_softmax_gradient(A, y, W, b)
        exact = two_products(A.double(), y, W.double(), b.double())
        pairs = zip(fused_softmax_gradient(A, y, W, b), exact, strict=True)
        print(f"largest error of the kernel: {max(float((o - e).abs().max() / e.abs().max()) for o, e in pairs):.1e}\n")
    rows = [(name, f"{replayed_ms(way):.3f}") for name, way in ways.items()]
    rows.append(("a whole simulated round of FedFW, l1", f"{round_ms():.3f}"))
    print(machine("cuda"), "\n", *markdown(("", "ms"), rows), sep="\n")


if __name__ == "__main__":
    main()
