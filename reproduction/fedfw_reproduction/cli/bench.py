"""``fedfw bench``: rounds of FedAvg and FedFW, side by side with a loop, hand-batched PyTorch and
other frameworks.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is timed, how often, beside which frameworks, and where the numbers go."""
    parser.description = (
        "Time rounds beside a loop over clients, hand-batched PyTorch and other frameworks. The repeats are "
        "interleaved in one run, and final losses must agree before a time is printed."
    )
    parser.add_argument(
        "tasks",
        nargs="*",
        default=["small", "mnist"],
        help="small, few, many, mnist, mnist-100, mlp, cnn [small mnist]",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch [%(default)s]")
    parser.add_argument(
        "--rounds", type=int, help="rounds of a repeat [as many as take about a second]"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="how often each is timed, at the least [%(default)s]"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="for how long they take turns, at the least [%(default)g]",
    )
    parser.add_argument(
        "--frameworks",
        choices=("none", "small", "all"),
        default="small",
        help="on which tasks pfl and Flower run, where $FEDFW_FRAMEWORKS has them [%(default)s]",
    )
    parser.add_argument("--out", type=Path, help="keep the numbers in this file, as JSON")


def execute(options: argparse.Namespace) -> int:
    """Time the tasks."""
    from fedfw_reproduction.bench.run import bench

    return bench(
        options.tasks,
        threads=options.threads,
        rounds=options.rounds,
        repeats=options.repeats,
        seconds=options.seconds,
        frameworks=options.frameworks,
        out=options.out,
    )
