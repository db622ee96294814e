"""Time rounds of an earlier revision and of the working tree in turn: python scripts/against.py
REVISION [REPEATS].

Both trees are compiled, every measurement is a process of its own on one thread, and the least time
of each counts: processor time, and of two ranks, which wait for each other, the time on the clock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TASKS = {
    "FedFW, l1:10, 10 x 6000 x 784": ('FedFW("l1:10")', 10, 6000, 784, 20),
    "FedFW, l2:1, 10 x 6000 x 784": ('FedFW("l2:1")', 10, 6000, 784, 20),
    "FedFW+, nuclear:1, 10 x 6000 x 784": ('FedFWPlus("nuclear:1")', 10, 6000, 784, 20),
    "FedFW, l1:10, 100 x 600 x 784": ('FedFW("l1:10")', 100, 600, 784, 20),
    "FedFW, l1:10, 100 x 50 x 60": ('FedFW("l1:10")', 100, 50, 60, 400),
    "FedFW, l1:10, 10 x 50 x 60": ('FedFW("l1:10")', 10, 50, 60, 400),
}
SHARED = (
    "FedFW, l1:10, 10 x 6000 x 784",
    "FedFW, l2:1, 10 x 6000 x 784",
    "FedFW, l1:10, 100 x 50 x 60",
)
"""Tasks that are also timed with two ranks."""
PROGRAM = """
import sys, time, warnings
import torch, fedfw
from fedfw import FedFW, FedFWPlus
warnings.simplefilter("ignore")
method, n, m, f, rounds = sys.argv[1], *map(int, sys.argv[2:])
torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
clients = [
    (torch.rand(m, f, generator=generator), torch.randint(10, (m,), generator=generator)) for _ in range(n)
]
with fedfw.join_ranks() as ranks:
    clock = time.process_time if ranks.size == 1 else time.perf_counter
    loss = torch.nn.functional.cross_entropy
    problem = fedfw.Problem(torch.nn.Linear(f, 10), loss, clients, ranks=ranks)
    fedfw.simulate(problem, eval(method), rounds=5, eval_every=5)
    times = []
    for _ in range(1 if ranks.size == 1 else 5):
        begin = clock()
        fedfw.simulate(problem, eval(method), rounds=rounds, eval_every=rounds)
        times.append(1e3 * (clock() - begin) / rounds)
    if ranks.first:
        print(min(times))
"""


def compile_in(tree: Path) -> None:
    """Compile the C code of a tree, beside its sources."""
    setup = "from setuptools import setup; setup()"
    command = [sys.executable, "-c", setup, "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)


def measure(tree: Path, program: Path, task: tuple[object, ...], ranks: int) -> float:
    """Return the milliseconds of a round."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *(launcher if ranks > 1 else ()), str(program), *map(str, task)]
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(found.stdout)


def main() -> None:
    """Print a table: a line for each task."""
    revision = sys.argv[1]
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", before, revision], cwd=ROOT, check=True
        )
        try:
            for tree in (before, ROOT):
                compile_in(tree)
            print("| a round of | before, ms | after, ms | after / before |\n|---|---:|---:|---:|")
            for name, ranks in [*((name, 1) for name in TASKS), *((name, 2) for name in SHARED)]:
                times: dict[Path, list[float]] = {before: [], ROOT: []}
                for _ in range(repeats):
                    for tree, found in times.items():
                        found.append(measure(tree, program, TASKS[name], ranks))
                old, new = (min(found) for found in times.values())
                title = name if ranks == 1 else f"{name}, two ranks"
                print(f"| {title} | {old:.2f} | {new:.2f} | {new / old:.2f} |", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", before], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
