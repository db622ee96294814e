"""Time of one simulated round against hand-batched PyTorch and against the gradient's bare matrix products.

    python -m fedfw_reproduction.bench.rounds            print the table
    python -m fedfw_reproduction.bench.rounds --write    and put it into docs/rounds.md

Softmax regression, one full-gradient step of FedFW on an l1 ball a round, float32. "Hand-batched" is what one would
write for exactly this task: two batched products, torch's softmax, the oracle's argmax, the steps; no records, bytes or
certificate. Both compute the same rounds, and their final losses are compared before any time is printed. The products
alone are the floor. Evaluations are left out (eval_every is beyond the last round). Repeats are interleaved.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import fedfw
from fedfw_reproduction.bench.contenders import bare_products, frank_wolfe, hand_fedfw, ours
from fedfw_reproduction.bench.pages import machine, publish
from fedfw_reproduction.bench.tasks import CLASSES, BenchTask
from fedfw_reproduction.bench.tasks import TASKS as BENCH
from fedfw_reproduction.bench.timing import compare

TASKS = {
    "10 x 6,000 x 784": BENCH["mnist"],
    "100 x 600 x 784": BENCH["mnist-100"],
    "100 x 50 x 60": BENCH["small"],
}


def simulated(problem: fedfw.Problem, task: BenchTask, rounds: int) -> fedfw.Run:
    return fedfw.simulate(problem, frank_wolfe(), rounds=rounds, eval_every=10**9)


def measure(name: str) -> str:
    task = TASKS[name]
    rounds = 20 if task.samples * task.clients * task.features > 10**6 else 200
    sides = {"ours": ours(task, frank_wolfe()), "by hand": hand_fedfw(task), "products": bare_products(task)}
    times = compare(task, sides, rounds, repeats=7)
    own, hand, bare = (times[side].round_ms for side in sides)
    run = simulated(task.problem(), task, rounds)
    shares = [sum((r.seconds or {})[part] for r in run.history) for part in ("gradient", "oracle", "rest")]
    parts = " | ".join(f"{share / sum(shares):.1%}" for share in shares)
    return f"| {name} | {own:.2f} | {hand:.2f} | {bare:.2f} | {own / hand:.2f} | {own / bare:.2f} | {parts} |"


def peak_memory(name: str) -> str:
    """Peak memory of a whole run in a process of its own, beside the data and n p floats."""
    script = (
        "import fedfw_reproduction.bench.rounds as b\n"
        f"task = b.TASKS[{name!r}]\nproblem = task.problem()\nb.simulated(problem, task, 1)\n"
        "open('/proc/self/clear_refs', 'w').write('5')\n"  # forget the peak so far
        "lines = lambda: dict(line.split(':') for line in open('/proc/self/status'))\n"
        "held = lines()['VmRSS']\nb.simulated(problem, task, 20)\n"
        "print(int(lines()['VmHWM'].split()[0]) - int(held.split()[0]))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    task = TASKS[name]
    n, m, f = task.clients, task.samples, task.features
    grown, state = int(out) * 1024, 4 * n * task.parameters
    scores = 4 * n * m * CLASSES
    return f"| {name} | {4 * n * m * f / 1e6:.1f} | {state / 1e6:.2f} | {scores / 1e6:.1f} | {grown / 1e6:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/rounds.md")
    options = parser.parse_args()
    lines = [
        "# One round, timed",
        "",
        "Made by `python -m fedfw_reproduction.bench.rounds --write`; what is compared stands at the top of that file.",
        machine(),
        "",
        "| clients x samples x features | ours ms | by hand ms | products ms | ours / hand | ours / products "
        "| gradients | oracle | the rest |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
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
