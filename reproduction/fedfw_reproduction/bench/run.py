"""Rounds of FedAvg and FedFW, timed side by side with a loop, hand-batched PyTorch and other
frameworks.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch

from fedfw.report import aligned
from fedfw_reproduction.bench import contenders as run_by
from fedfw_reproduction.bench.contenders import Contender
from fedfw_reproduction.bench.frameworks import SCRIPTS, framework_timing
from fedfw_reproduction.bench.tasks import SMALL, TASKS, BenchTask
from fedfw_reproduction.bench.timing import Timing, compare, refuse_different

HEADER = ("", "ms a round", "/ by hand", "first round ms", "CPU ms a round", "memory added MB")
OURS, HAND, LOOP = "fedfw", "by hand", "loop over clients"
FEDAVG, STO = "FedAvg", f"FedFW-sto, l2:{run_by.RADII['l2']:g}, batches of {run_by.BATCH}"
_ROUNDS_OF_FRAMEWORKS = 20


def bench(
    names: Sequence[str],
    *,
    threads: int = 1,
    rounds: int | None = None,
    repeats: int = 5,
    seconds: float = 10.0,
    frameworks: str = "small",
    out: Path | None = None,
) -> int:
    """Time the tasks, print a table each, and keep the numbers if asked to.

    Parameters
    ----------
    names : sequence of str
        Of tasks, see `fedfw_reproduction.bench.tasks.TASKS`.
    threads : int
        Threads of torch.
    rounds : int, optional
        Rounds of a repeat; by default about a second's worth.
    repeats : int
        How often each contender is timed, at the least.
    seconds : float
        For how long contenders of one task take turns, at the least.
    frameworks : "none", "small" or "all"
        Whether other frameworks run, too: on no task, on the task ``small`` or on all. The
        environment variable FEDFW_FRAMEWORKS names the folder of their environment and scripts
        (reproduction/frameworks of the repository); without it they are reported as not installed.
    out : Path, optional
        Keep the numbers in this file, as JSON.

    Returns
    -------
    int
        The exit status of the command.
    """
    for name in names:
        if name not in TASKS:
            raise ValueError(f"task {name!r}, expected one of {', '.join(TASKS)}")
    for option, value in (("threads", threads), ("rounds", rounds), ("repeats", repeats)):
        if value is not None and value < 1:
            raise ValueError(f"--{option} {value}, expected a whole number of at least 1")
    if not 0 <= seconds < math.inf:
        raise ValueError(f"--seconds {seconds:g}, expected a number of at least 0")
    with_frameworks = {"none": [], "small": [SMALL], "all": list(TASKS.values())}[frameworks]
    torch.set_num_threads(threads)
    numbers: dict[str, Any] = {"threads": threads, "torch": torch.__version__, "tasks": {}}
    for name in names:
        task = TASKS[name]
        for algorithm, sides in _matches(task).items():
            count = rounds or _enough(task)
            print(
                f"{task.label}: {algorithm}, {count} rounds x {repeats} or more ...",
                file=sys.stderr,
                flush=True,
            )
            found: dict[str, Timing | str] = dict(compare(task, sides, count, repeats, seconds))
            if algorithm == FEDAVG and task in with_frameworks:
                found |= _others(task)
            print(
                f"\n{algorithm}, {task.label}, {threads} thread(s)\n{aligned([HEADER, *table_rows(found)])}",
                flush=True,
            )
            kept = {who: t if isinstance(t, str) else asdict(t) for who, t in found.items()}
            numbers["tasks"].setdefault(name, {"label": task.label})[algorithm] = kept
    print(
        "\nOn tiny models these times are overhead: what a framework does around a few microseconds of arithmetic. "
        "Flower\nships real messages between processes, which a simulation in one process need not."
    )
    if out is not None:
        out.write_text(json.dumps(numbers, indent=1))
        print(f"numbers: {out}")
    return 0


def _enough(task: BenchTask) -> int:
    """Rounds that take a second or so, and some more where they are long."""
    work = (
        task.clients
        * task.samples
        * task.features
        * (task.features * 50 if task.model == "cnn" else 1)
    )
    return max(15, min(200, 10**8 // work))


def _matches(task: BenchTask) -> dict[str, dict[str, Contender]]:
    """Return algorithms with their contenders: all of them on the task of MNIST's size."""
    fedavg = {
        OURS: run_by.ours(task, run_by.fedavg(task)),
        HAND: run_by.hand_fedavg(task),
        LOOP: run_by.loop_fedavg(task),
    }
    if task.model != "softmax":
        return {FEDAVG: fedavg}
    matches = {FEDAVG: fedavg | _floor(task)}
    many = task.name == "mnist"
    for plus, ball in product((False, True), run_by.RADII):
        if many or (not plus and ball == "l1"):
            matches[f"FedFW{'+' if plus else ''}, {ball}:{run_by.RADII[ball]:g}"] = {
                OURS: run_by.ours(task, run_by.frank_wolfe(ball, plus)),
                HAND: run_by.hand_fedfw(task, ball, plus),
            } | _floor(task)
    if task.samples >= 4 * run_by.BATCH:
        matches[STO] = {
            OURS: run_by.ours(task, run_by.fedfw_sto(task), run_by.BATCH),
            HAND: run_by.hand_fedfw_sto(task),
        } | _floor(task, run_by.BATCH)
    return matches


def _floor(task: BenchTask, batch: int | None = None) -> dict[str, Contender]:
    """The two products, which read the samples twice."""
    read = 2 * 4 * task.clients * (batch or task.samples) * task.features
    return {f"bare products, {read / 1e6:.1f} MB read": run_by.bare_products(task, batch)}


def _others(task: BenchTask) -> dict[str, Timing | str]:
    found: dict[str, Timing | str] = {}
    for name in SCRIPTS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        timing = framework_timing(name, task, rounds=_ROUNDS_OF_FRAMEWORKS)
        if isinstance(timing, Timing) and timing.loss is not None:
            # Their loss must be that of the same number of rounds by hand.
            x = run_by.hand_fedavg(task)(_ROUNDS_OF_FRAMEWORKS, lambda: None)
            refuse_different(task, {name: timing.loss, HAND: task.problem().value(x)})
        found[name] = timing
    return found


def table_rows(found: Mapping[str, Timing | str]) -> list[tuple[str, ...]]:
    """The rows under `HEADER`."""
    hand = found[HAND]
    assert isinstance(hand, Timing)
    rows: list[tuple[str, ...]] = []
    for name, timing in found.items():
        if isinstance(timing, str):
            rows.append((name, timing, "", "", "", ""))
            continue
        memory = "-" if timing.peak_mb is None else f"{timing.peak_mb:.1f}"
        ratio = f"{timing.round_ms / hand.round_ms:.2f}"
        round_ms, first, cpu = (
            f"{value:.2f}" for value in (timing.round_ms, timing.first_ms, timing.cpu_ms)
        )
        rows.append((name, round_ms, ratio, first, cpu, memory))
    return rows
