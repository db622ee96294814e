"""A million registered clients: seconds a round and memory against how many are registered.

    python -m fedfw_reproduction.bench.scale [--registered 1000 10000 100000 1000000] [--rounds 100]

Softmax regression with 7,850 parameters on the l1 ball; 1,000 clients of 20 samples take part in a
round, whose samples are made from their numbers. Each line is a process of its own, so that its
peak memory is its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as nnf
from torch import Tensor

import fedfw

PARTICIPANTS, SAMPLES, FEATURES, CLASSES = 1000, 20, 784, 10
_PATTERNS = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))


def make(who: Tensor) -> tuple[Tensor, Tensor]:
    """Noisy patterns of three classes a client, from its number alone (a hash mixes it with places
    in a table).
    """
    table = torch.randn(4099, FEATURES, generator=torch.Generator().manual_seed(1))
    place = (who[:, None] * 40503 + torch.arange(SAMPLES) * 9973) % 4099
    targets = (who[:, None] + place % 3) % CLASSES
    return _PATTERNS[targets] + 2 * table[place], targets


def measure(registered: int, rounds: int) -> dict[str, float]:
    """One run in this process."""
    model = torch.nn.Linear(FEATURES, CLASSES)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    inputs, targets = make(torch.arange(10**7, 10**7 + 100))
    test = inputs.flatten(0, 1), targets.flatten()
    began = time.perf_counter()
    problem = fedfw.Problem.generated(model, nnf.cross_entropy, registered, make, test)
    marks: list[float] = []
    run = fedfw.simulate(
        problem,
        fedfw.FedFW(fedfw.L1Ball(30.0), penalty=1e-4, momentum=0.0),
        rounds=rounds,
        participation=PARTICIPANTS if registered > PARTICIPANTS else 1.0,
        eval_every=rounds,
        callbacks=lambda simulation: marks.append(time.perf_counter()),
    )
    gaps = [b - a for a, b in itertools.pairwise(marks)]
    return {
        "registered": registered,
        "round": statistics.median(gaps),
        "total": time.perf_counter() - began,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "accuracy": run.history[-1].accuracy or 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--registered", type=int, nargs="+", default=[10**k for k in (3, 4, 5, 6)])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one, options.rounds)))
        return
    print(
        f"| registered | s a round | s for {options.rounds} rounds | peak memory (GB) | test accuracy |\n"
        "|---|---|---|---|---|"
    )
    for registered in options.registered:
        command = [
            sys.executable,
            "-m",
            "fedfw_reproduction.bench.scale",
            "--one",
            str(registered),
            "--rounds",
            str(options.rounds),
        ]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        row = json.loads(printed.splitlines()[-1])
        print(
            f"| {row['registered']:,} | {row['round']:.3f} | {row['total']:.1f} | {row['peak_gb']:.2f} | "
            f"{100 * row['accuracy']:.1f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main()
