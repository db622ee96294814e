"""Time of one simulated round against hand-batched PyTorch and against the gradient's bare matrix products.

    python -m benchmarks.rounds            print the table
    python -m benchmarks.rounds --write    and put it into docs/rounds.md

Softmax regression, one full-gradient step of FedFW on an l1 ball a round, float32. "Hand-batched" is what one would
write for exactly this task: two batched products, torch's softmax, the oracle's argmax, the steps; no records, bytes or
certificate. Both compute the same rounds, and their final losses are compared before any time is printed. The products
alone are the floor. Evaluations are left out (eval_every is beyond the last round). Repeats are interleaved.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as nnf

import fedfw
from benchmarks.common import machine, publish

TASKS = {"10 x 6,000 x 784": (10, 6000, 784), "100 x 600 x 784": (100, 600, 784), "100 x 50 x 60": (100, 50, 60)}
CLASSES, RADIUS, PENALTY = 10, 10.0, 1e-3


def make_data(n: int, m: int, f: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, m, f, generator=generator), torch.randint(0, CLASSES, (n, m), generator=generator)


def make_problem(A: torch.Tensor, y: torch.Tensor) -> fedfw.Problem:
    model = torch.nn.Linear(A.shape[2], CLASSES)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return fedfw.Problem(model, nnf.cross_entropy, list(zip(A, y, strict=True)))


def hand_batched(A: torch.Tensor, y: torch.Tensor, rounds: int) -> torch.Tensor:
    """FedFW on the l1 ball, written for this task alone."""
    n, m, f = A.shape
    p = CLASSES * f + CLASSES
    x, xbar, rows = torch.zeros(n, p), torch.zeros(p), torch.arange(n)
    places = y.unsqueeze(2)
    minus = torch.full((1, 1, 1), -1.0).expand_as(places)
    for t in range(1, rounds + 1):
        scores = torch.bmm(A, x[:, : CLASSES * f].view(n, CLASSES, f).mT)
        scores += x[:, CLASSES * f :].unsqueeze(1)
        R = scores.softmax(2).scatter_add_(2, places, minus)
        R *= 1 / (m * n)
        g = torch.empty(n, p)
        g[:, : CLASSES * f] = torch.bmm(R.mT, A).flatten(1)
        g[:, CLASSES * f :] = R.sum(1)
        eta, lam = 2 / (t + 1), PENALTY * (t + 1) ** 0.5
        g += lam * (x - xbar)
        j = g.abs().argmax(1)
        s = -g[rows, j].sign() * RADIUS
        x *= 1 - eta
        x[rows, j] += eta * s
        xbar = x.mean(0)
    return xbar


def bare_products(A: torch.Tensor, rounds: int) -> None:
    n, m, f = A.shape
    W, R = torch.randn(n, CLASSES, f), torch.randn(n, m, CLASSES)
    for _ in range(rounds):
        torch.bmm(A, W.mT)
        torch.bmm(R.mT, A)


def simulated(problem: fedfw.Problem, rounds: int) -> fedfw.Run:
    algorithm = fedfw.FedFW(fedfw.L1Ball(RADIUS), penalty=PENALTY)
    return fedfw.simulate(problem, algorithm, rounds=rounds, eval_every=10**9)


def measure(name: str) -> str:
    n, m, f = TASKS[name]
    A, y = make_data(n, m, f)
    problem = make_problem(A, y)
    rounds = 20 if m * n * f > 10**6 else 200
    losses = [problem.value_and_gradient(x)[0] for x in (hand_batched(A, y, 40), simulated(problem, 40).x)]
    if abs(losses[0] - losses[1]) > 1e-4:
        sys.exit(f"{name}: final losses differ, {losses[0]} by hand and {losses[1]} simulated")
    times: list[list[float]] = [[], [], []]
    sides = (lambda: simulated(problem, rounds), lambda: hand_batched(A, y, rounds), lambda: bare_products(A, rounds))
    for _ in range(8):
        for side, kept in zip(sides, times, strict=True):
            start = time.perf_counter()
            side()
            kept.append((time.perf_counter() - start) / rounds * 1e3)
    ours, hand, bare = (median(kept[1:]) for kept in times)
    run = simulated(problem, rounds)
    shares = {part: sum((r.seconds or {})[part] for r in run.history) for part in ("gradient", "oracle", "rest")}
    rest = 1 - shares["gradient"] / sum(shares.values())
    return f"| {name} | {ours:.2f} | {hand:.2f} | {bare:.2f} | {ours / hand:.2f} | {ours / bare:.2f} | {rest:.0%} |"


def peak_memory(name: str) -> str:
    """Peak memory of a whole run in a process of its own, beside the data and n p floats."""
    script = (
        "import benchmarks.rounds as b\n"
        f"n, m, f = b.TASKS[{name!r}]\nA, y = b.make_data(n, m, f)\nproblem = b.make_problem(A, y)\n"
        "del A, y\nb.simulated(problem, 1)\n"
        "open('/proc/self/clear_refs', 'w').write('5')\n"  # forget the peak so far
        "lines = lambda: dict(line.split(':') for line in open('/proc/self/status'))\n"
        "held = lines()['VmRSS']\nb.simulated(problem, 20)\n"
        "print(int(lines()['VmHWM'].split()[0]) - int(held.split()[0]))"
    )
    root = Path(__file__).parent.parent
    out = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True).stdout
    n, m, f = TASKS[name]
    grown, state = int(out) * 1024, 4 * n * (CLASSES * f + CLASSES)
    scores = 4 * n * m * CLASSES
    return f"| {name} | {4 * n * m * f / 1e6:.1f} | {state / 1e6:.2f} | {scores / 1e6:.1f} | {grown / 1e6:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/rounds.md")
    options = parser.parse_args()
    lines = [
        "# One round, timed",
        "",
        "Made by `python -m benchmarks.rounds --write`; what is compared stands at the top of that file.",
        machine(),
        "",
        "| clients x samples x features | ours ms | by hand ms | products ms | ours / hand | ours / products "
        "| not gradients |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(measure(name) for name in TASKS),
        "",
        "Memory in MB at the peak of a run, on top of the problem and its data; beside it one n x p state and one",
        "n x samples x classes table of scores:",
        "",
        "| task | data | n p floats | scores | added by the run |",
        "|---|---:|---:|---:|---:|",
        *(peak_memory(name) for name in TASKS),
    ]
    publish(lines, "rounds.md" if options.write else None)


if __name__ == "__main__":
    main()
