"""What momentum 0.9 does to a run's residual, beside momentum 0: the default of ``momentum="auto"``.

    python -m fedfw_reproduction.bench.momentum [--rounds 30 100] [--seeds 2] [--full]

The problems are the frontier's small ones, softmax regression on the digits with two more sets, and
the frontier's synthetic data; ``--full`` adds those that need files. Penalty and schedule are the
defaults that follow from the momentum. A residual is (loss - optimum) / (loss at the start -
optimum). For each kind of gradients and method the table has the geometric mean, over problems,
rounds and seeds, of residual(0.9) / residual(0), and the number of cases in which 0.9 is better.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import fedfw
from fedfw.config import RunConfig, build_problem, completed, load
from fedfw.problems import Problem
from fedfw.solving import Optimum
from fedfw_reproduction.frontier.problems import FULL, QUICK

ALGORITHMS = {
    one.name: one for one in (fedfw.FedFW, fedfw.FedFWPlus, fedfw.FedFWAnchored, fedfw.FrankWolfe)
}
PRIVATE = fedfw.Privacy(eps=8.0, delta=1e-5, clip=1.0, not_private_seed=0)
GRADIENTS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, a fifth of the clients": {"participation": 0.2},
    "minibatches of 32": {"batch_size": 32},
    "private, eps=8": {"privacy": PRIVATE},
    "private, eps=8, minibatches of 32": {"privacy": PRIVATE, "batch_size": 32},
}
"""The options of a run by the kind of gradients."""
NO_PRIVACY = ("fedfw-anchored", "frank-wolfe")
"""Methods that share gradients, and so cannot be private."""


def configurations(full: bool) -> Iterator[RunConfig]:
    """Yield the problems."""
    for one in QUICK:
        yield one.config
    for constraint in ("l2:10", "ksparse:k=65,r=1"):
        yield replace(QUICK[0].config, constraint=constraint)
    for one in FULL:
        if full or one.config.dataset.startswith("synthetic"):
            yield one.config


def residual(
    problem: Problem, name: str, constraint: str, beta: float, optimum: Optimum, how: Any
) -> float:
    """Return the share of the initial gap that a run leaves."""
    algorithm = ALGORITHMS[name](constraint, momentum=beta)
    run = fedfw.simulate(problem, algorithm, eval_every=how["rounds"], **how)
    return max(optimum.residual(problem.value(run.feasible)), 1e-9)


def compare(config: RunConfig, rounds: Sequence[int], seeds: int) -> dict[tuple[str, str], Any]:
    """Return the logarithms of ratios of residuals by kind of gradients and method."""
    found: dict[tuple[str, str], list[float]] = {}
    config = completed(config, load(config))
    problem = build_problem(config, load(config))
    constraint = config.constraint or ""
    optimum = fedfw.solve(problem, constraint, tol=1e-3)
    for kind, options in GRADIENTS.items():
        for name in ALGORITHMS:
            if name in NO_PRIVACY and "privacy" in options:
                continue
            for budget in rounds:
                for seed in range(seeds if options else 1):
                    how = {"rounds": budget, "seed": seed, **options}
                    if "privacy" in how:
                        how["privacy"] = replace(PRIVATE, not_private_seed=seed)
                    ends = [
                        residual(problem, name, constraint, beta, optimum, how)
                        for beta in (0.0, 0.9)
                    ]
                    found.setdefault((kind, name), []).append(math.log(ends[1] / ends[0]))
                    print(
                        f"{config.dataset}, {config.partition}, {constraint} | {kind} | {name} | "
                        f"{budget} rounds | seed {seed} | {ends[0]:.4f} | {ends[1]:.4f}",
                        flush=True,
                    )
    return found


def main() -> None:
    """Print one line for each case, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, nargs="+", default=[30, 100])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--full", action="store_true", help="problems that need files, too")
    given = parser.parse_args()
    total: dict[tuple[str, str], list[float]] = {}
    for config in configurations(given.full):
        for case, ratios in compare(config, given.rounds, given.seeds).items():
            total.setdefault(case, []).extend(ratios)
    print("| gradients | method | residual(0.9) / residual(0) | 0.9 is better |\n|---|---|---|---|")
    for (kind, name), ratios in total.items():
        mean = math.exp(math.fsum(ratios) / len(ratios))
        better = sum(ratio < 0 for ratio in ratios)
        print(f"| {kind} | {name} | {mean:.2f} | {better} of {len(ratios)} |")


if __name__ == "__main__":
    main()
