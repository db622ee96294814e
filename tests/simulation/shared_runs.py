"""Runs that one process takes alone and several take together.

``python -m tests.simulation.shared_runs OUT DTYPE,... [DEVICE]`` takes all of them.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import fedfw
from fedfw.algorithms.registry import ALGORITHMS
from fedfw.ranks import ALONE

SIZES = (9, 4, 7, 12, 5, 8, 3)
WEIGHTS = (1, 2, 3, 1, 2, 3, 1)
TOTALS = ("bytes_up", "bytes_down", "evidence_up", "evidence_down")


@cache
def problem(
    dtype: torch.dtype, ranks: fedfw.Ranks = ALONE, weights: tuple[int, ...] | None = None
) -> fedfw.Problem:
    """Seven clients of different sizes, and 31 test samples."""
    draw = torch.Generator().manual_seed(3)

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 6, generator=draw, dtype=dtype), torch.randint(
            3, (count,), generator=draw
        )

    model = torch.nn.Linear(6, 3).to(dtype)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    clients, test = [samples(count) for count in SIZES], samples(31)
    return fedfw.Problem(
        model, torch.nn.functional.cross_entropy, clients, test, weights=weights, ranks=ranks
    )


def many(ranks: fedfw.Ranks = ALONE) -> fedfw.Problem:
    """A thousand clients, of which few ever take part."""

    def make(who: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.sin(who[:, None, None] + torch.arange(40.0).view(1, 2, 20))
        return inputs, (who[:, None] + torch.arange(2)) % 3

    model = torch.nn.Linear(20, 3, bias=False)
    torch.nn.init.zeros_(model.weight)
    return fedfw.Problem.generated(
        model, torch.nn.functional.cross_entropy, 1000, make, ranks=ranks
    )


Case = tuple[Callable[[], fedfw.Algorithm], dict[str, Any]]


def cases() -> dict[str, Case]:
    """An algorithm with its set and the options of its run, by name.

    Every algorithm takes three rounds: of those who take part some come again, and in the third
    only one client does, so that a rank has none. What is about more rounds, or about every
    evaluation, has a case of its own.
    """
    found: dict[str, Case] = {}
    short: dict[str, Any] = {"rounds": 3, "eval_every": 3}
    some = short | {"participation": 0.4, "weights": WEIGHTS}
    for name, kind in ALGORITHMS.items():
        found[name] = (lambda kind=kind: kind("l2:5")), short
        found[f"{name}, some"] = (lambda kind=kind: kind("l1:5")), some
        if name not in ("frank-wolfe", "fedpgd"):
            found[f"{name}, local"] = (
                (lambda kind=kind: kind("l1:5")),
                short | {"local_steps": 2, "batch_size": 4},
            )
    larger, seeded = fedfw.L2Ball(4.0), fedfw.Privacy(eps=4, delta=1e-5, not_private_seed=1)
    noisy = replace(
        seeded, noise=2.0
    )  # to find the least noise for parts of the data takes longer than the run
    for compress in ("topk:4", "bits:4"):
        found[f"frank-wolfe, {compress}"] = (
            (
                lambda compress=compress: fedfw.FrankWolfe(
                    "l2:5", compress=compress, compress_down="topk:4"
                )
            ),
            {"participation": 0.6},
        )
    lmo = ALGORITHMS["fedlmo"]
    return found | {
        "relaxed": (lambda: fedfw.FedFW("l1:2"), {"relax": {1: larger, 5: larger}}),
        "relaxed, some": (
            lambda: fedfw.FedFW("l1:2"),
            {"relax": {1: larger, 5: larger}, "participation": 0.5},
        ),
        "private": (lambda: fedfw.FedFW("l1:2"), {"privacy": seeded}),
        "private, some": (
            lambda: fedfw.FedAvg("l2:2", lr=0.1),
            {"privacy": noisy, "batch_size": 2, "participation": 0.5},
        ),
        "anchors, compressed": (
            lambda: fedfw.FedFWAnchored("l1:5", compress="topk:4"),
            {"participation": 0.6},
        ),
        "anchors, own points": (
            lambda: fedfw.FedFWAnchored("l1:5", gradient_at="own", anchor_every=3),
            {"participation": 0.6},
        ),
        "curvature": (lambda: fedfw.FedFWPlus("l1:5", schedule="curvature", momentum=0.9), {}),
        "until proven": (lambda: fedfw.FedFW("l1:5"), {"tol": 0.2, "rounds": 300}),
        "theory": (lambda: fedfw.FedFW("l1:5", penalty="theory"), {}),
        "two of a round": (lambda: fedfw.FedFW("l1:5"), {"participation": 2}),
        "nuclear": (lambda: fedfw.FedFW("nuclear:3"), {}),
        "certified": (lambda: fedfw.FedFW("nuclear:3"), {"certify": 0.1}),
        "seldom evaluated": (lambda: fedfw.FedFWPlus("l1:5"), {"eval_every": 4}),
        "fedlmo, compressed": (
            lambda: lmo("l2:5", compress="bits:4"),
            {"participation": 0.6, "local_steps": 2, "weights": WEIGHTS},
        ),
        "fedlmo at the server": (
            lambda: fedfw.ServerLMO("l2:5"),
            {"participation": 0.6, "local_steps": 2},
        ),
        "long": (lambda: fedfw.FedFW("l2:5"), {"rounds": 100, "eval_every": 25}),
    }


def outcome(run: fedfw.Run) -> dict[str, Any]:
    """What is compared: the model, all records without their seconds, bytes and bound."""
    records = [asdict(record) | {"seconds": None} for record in run.history]
    totals = [run.history.total(name) for name in TOTALS]
    return {
        "x": run.x.flatten().tolist(),
        "records": records,
        "bound": run.lower_bound,
        "totals": totals,
    }


def take(case: Case, dtype: torch.dtype, ranks: fedfw.Ranks = ALONE, **more: Any) -> dict[str, Any]:
    """One of the runs."""
    make, options = case
    options = {"rounds": 5} | options | more
    shared = problem(dtype, ranks, options.pop("weights", None))
    return outcome(fedfw.simulate(shared, make(), **options))


def main() -> None:
    out, dtypes, device = Path(sys.argv[1]), sys.argv[2].split(","), (*sys.argv[3:], None)[0]
    torch.set_num_threads(1)
    with fedfw.join_ranks() as ranks:
        found: dict[str, Any] = {}
        few = {"participation": 5, "rounds": 12, "eval_every": 6, "device": device}
        of_many = outcome(fedfw.simulate(many(ranks), fedfw.FedFW("l1:5", penalty=0.1), **few))
        for name in dtypes:
            dtype = getattr(torch, name)
            found[name] = {
                case: take(made, dtype, ranks, device=device) for case, made in cases().items()
            }
            found[name]["many"] = of_many
        if ranks.first:
            out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
