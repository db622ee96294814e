"""One gradient of softmax regression on a GPU, and one simulated round of FedFW.

    python -m fedfw_reproduction.bench.gpu            10 clients x 6,000 samples x 784 features; needs CUDA and Triton
    python -m fedfw_reproduction.bench.gpu --write    the same, kept in reproduction/reports/gpu.md

Each way to work out loss and gradient is replayed as a CUDA graph, and the kernel's error against
float64 is printed. So is a round of FedFW on the l1 ball that was written by hand for this task; it
ends where the simulator's rounds end.
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
from fedfw.data import Data, Part
from fedfw.gpu.softmax import can_fuse, fused_softmax_gradient
from fedfw.models import make_model
from fedfw_reproduction.bench.contenders import PENALTY, RADIUS, frank_wolfe
from fedfw_reproduction.bench.pages import machine, markdown, publish
from fedfw_reproduction.bench.tasks import CLASSES, TASKS

ROUNDS = 300


def recorded(function: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Return a function of CUDA tensors as a graph."""
    for _ in range(5):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def timed_ms(function: Callable[[], Any], times: int) -> float:
    """Return the milliseconds of one of so many calls, after five that are not timed."""
    for _ in range(5):
        function()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        function()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / times


def two_products(
    A: torch.Tensor, y: torch.Tensor, W: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    scores = torch.bmm(A, W.mT) + b[:, None]
    losses = scores.logsumexp(2) - scores.gather(2, y.unsqueeze(2)).squeeze(2)
    return losses.mean(1), *_products(A, y, scores)


def _products(
    A: torch.Tensor, y: torch.Tensor, scores: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the weights and of the bias."""
    R, places = scores.softmax(2), y.unsqueeze(2)
    R.scatter_add_(2, places, R.new_full((1, 1, 1), -1.0).expand_as(places)).mul_(1 / A.shape[1])
    return torch.bmm(R.mT, A), R.sum(1)


def by_hand(A: torch.Tensor, y: torch.Tensor, rounds: int) -> tuple[float, torch.Tensor]:
    """Milliseconds of a round of FedFW on the l1 ball as one CUDA graph, and the mean model after
    ``rounds``.
    """
    n, _, f = A.shape
    split = CLASSES * f
    x, t = (
        torch.zeros(n, split + CLASSES, device="cuda"),
        torch.zeros((), dtype=torch.float64, device="cuda"),
    )
    g, xbar = torch.zeros_like(x), torch.zeros_like(x[0])

    def step() -> None:
        t.add_(1)
        scores = torch.bmm(A, x[:, :split].view(n, CLASSES, f).mT).add_(x[:, split:].unsqueeze(1))
        of_weights, of_bias = _products(A, y, scores)  # no losses: nobody asks for them
        g[:, :split], g[:, split:] = of_weights.flatten(1), of_bias
        g.div_(n).add_((x - xbar).mul_(PENALTY * (t + 1).sqrt()))
        eta, j = (2 / (t + 1)).float(), g.abs().argmax(1, keepdim=True)
        x.mul_(1 - eta).scatter_add_(1, j, -RADIUS * eta * g.gather(1, j).sign())
        xbar.copy_(x.mean(0))

    graph = recorded(step)
    for tensor in (x, t, xbar):
        tensor.zero_()
    for _ in range(rounds):
        graph.replay()
    model = xbar.clone()
    return timed_ms(graph.replay, rounds), model


def simulated_ms(
    problem: fedfw.Problem, algorithm: fedfw.Algorithm, rounds: int
) -> tuple[float, torch.Tensor]:
    """Return the milliseconds of a simulated round, the first five left out, and the model."""
    marks: list[float] = []
    run = fedfw.simulate(
        problem,
        algorithm,
        rounds=rounds,
        eval_every=10**9,
        device="cuda",
        callbacks=lambda simulation: marks.append(time.perf_counter()),
    )
    return 1e3 * median(b - a for a, b in pairwise(marks[5:])), run.x


def several_runs(algorithm: fedfw.Algorithm) -> str:
    """Return the median of five runs, the least and the most: how fast the host is differs from run
    to run.
    """
    problem = TASKS["mnist"].problem()
    times = sorted(simulated_ms(problem, algorithm, ROUNDS)[0] for _ in range(5))
    return f"{median(times):.3f} ({times[0]:.3f} to {times[-1]:.3f})"


def others() -> dict[str, fedfw.Algorithm]:
    """Other rounds that are replayed as CUDA graphs."""
    return {
        "FedFW on the l2 ball": frank_wolfe("l2"),
        "FedFW on the nuclear ball": frank_wolfe("nuclear"),
        "FedAvg on the l1 ball": fedfw.FedAvg(fedfw.L1Ball(RADIUS), lr=0.1),
        "FedAvg on the l2 ball": fedfw.FedAvg(fedfw.L2Ball(RADIUS), lr=0.1),
    }


def convolutions() -> list[tuple[str, str]]:
    """Table 2's CNN on ten clients of 6,000 images: a round, and the same passes over all images
    together.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(60_000, 1, 28, 28, generator=generator)
    classes = torch.randint(0, CLASSES, (60_000,), generator=generator)
    everything = Part(images, classes)
    model = make_model("cnn", Data("images", everything, everything, CLASSES), 0)
    clients = list(zip(images.split(6000), classes.split(6000), strict=True))

    loss = torch.nn.functional.cross_entropy

    def a_round(mixed: bool) -> float:
        problem = fedfw.Problem(model, loss, clients, mixed=mixed)
        algorithm = fedfw.FedFW(fedfw.L2Ball(10.0), penalty=1e-3, momentum=0.0)
        return simulated_ms(problem, algorithm, 25)[0]

    each, in_bfloat16 = a_round(False), a_round(True)
    model, pooled = model.cuda(), [(a.cuda(), y.cuda()) for a, y in clients]

    def plain() -> None:
        for a, y in pooled:
            (loss(model(a), y) / len(pooled)).backward()

    together = timed_ms(plain, 20)
    return [
        ("a CNN's passes over all 60,000 images", f"{together:.1f}"),
        ("a round with it", f"{each:.1f}"),
        ("the same with mixed=True: in bfloat16, compiled", f"{in_bfloat16:.1f}"),
    ]


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("this needs a CUDA device")
    A, y = (t.cuda() for t in TASKS["mnist"].data())
    W, b = (
        0.05 * torch.randn(len(A), CLASSES, A.shape[2], device="cuda"),
        torch.zeros(len(A), CLASSES, device="cuda"),
    )
    R, copy = torch.randn(len(A), A.shape[1], CLASSES, device="cuda"), torch.empty_like(A)
    ways: dict[str, Callable[[], Any]] = {
        "the two bare products": lambda: (torch.bmm(A, W.mT), torch.bmm(R.mT, A)),
        "loss and gradient from two products": lambda: two_products(A, y, W, b),
        "copying the samples once": lambda: copy.copy_(A),
    }
    if can_fuse(A, CLASSES, y):
        x = torch.cat([W.flatten(1), b], 1)
        values, gradients = torch.empty(len(A), device="cuda"), torch.empty_like(x)
        ways["loss and gradient in one pass"] = lambda: fused_softmax_gradient(
            A, y, x, CLASSES, values, gradients
        )
        ways["loss and gradient in one pass"]()
        losses, of_weights, of_bias = two_products(A.double(), y, W.double(), b.double())
        pairs = zip(
            (values, gradients),
            (losses, torch.cat([of_weights.flatten(1), of_bias], 1)),
            strict=True,
        )
        print(
            f"largest error of the kernel: {max(float((o - e).abs().max() / e.abs().max()) for o, e in pairs):.1e}\n"
        )
    rows = [(name, f"{timed_ms(recorded(way).replay, 200):.3f}") for name, way in ways.items()]
    by_hand_ms, theirs = by_hand(A, y, ROUNDS)
    problem = TASKS["mnist"].problem()
    _, model = simulated_ms(problem, frank_wolfe(), ROUNDS)
    ends = [problem.value(x.to(problem.start)) for x in (theirs, model)]
    if abs(ends[0] - ends[1]) > 1e-4:
        sys.exit(f"the losses after {ROUNDS} rounds differ: {ends}")
    rows += [("a round of FedFW on the l1 ball by hand, as a CUDA graph", f"{by_hand_ms:.3f}")]
    rows += [("the simulator's round, with its records", several_runs(frank_wolfe()))]
    for name, algorithm in others().items():
        rows += [(f"a simulated round of {name}", several_runs(algorithm))]
    rows += convolutions()
    publish(
        [machine("cuda"), "", *markdown(("", "ms"), rows)],
        "gpu.md" if "--write" in sys.argv else None,
    )


if __name__ == "__main__":
    main()
