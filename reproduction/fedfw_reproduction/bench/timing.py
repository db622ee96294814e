"""Interleaved repeats: every contender has its turn in each of them, and only equal results are
timed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from fedfw.problems import Problem
from fedfw_reproduction.bench.contenders import Contender
from fedfw_reproduction.bench.tasks import BenchTask

SAME_LOSS = 1e-4


@dataclass(frozen=True)
class Timing:
    """What one contender needs.

    Parameters
    ----------
    round_ms, first_ms, cpu_ms : float
        Milliseconds of a steady round, of the first one, and of CPU time a round.
    peak_mb : float or None
        The memory that it added, in MB.
    loss : float or None
        Where it ended, for those that compute a model.
    """

    round_ms: float
    first_ms: float
    cpu_ms: float
    peak_mb: float | None = None
    loss: float | None = None


def compare(
    task: BenchTask,
    contenders: Mapping[str, Contender],
    rounds: int,
    repeats: int,
    seconds: float = 0.0,
) -> dict[str, Timing]:
    """Times of all, after their losses were found to agree (those that compute a model).

    They take turns, ``repeats`` times or more, until ``seconds`` are over: a machine that is slower
    now and then is not slower for one of them alone.
    """
    problem = task.problem()
    losses = {name: _loss(problem, contender, rounds) for name, contender in contenders.items()}
    refuse_different(task, {name: loss for name, loss in losses.items() if loss is not None})
    kept: dict[str, list[Timing]] = {name: [] for name in contenders}
    begin, turns = time.perf_counter(), 0
    while turns < repeats or time.perf_counter() - begin < seconds:
        turns += 1
        for name, contender in contenders.items():
            kept[name].append(_timed(contender, rounds))
    return {
        name: Timing(
            round_ms=median(t.round_ms for t in times),
            first_ms=median(t.first_ms for t in times),
            cpu_ms=median(t.cpu_ms for t in times),
            peak_mb=max((t.peak_mb for t in times if t.peak_mb is not None), default=None),
            loss=losses[name],
        )
        for name, times in kept.items()
    }


def refuse_different(task: BenchTask, losses: Mapping[str, float]) -> None:
    """Nothing is timed that does not compute the same."""
    if losses and max(losses.values()) - min(losses.values()) > SAME_LOSS:
        listed = ", ".join(f"{name} {loss:.6f}" for name, loss in losses.items())
        raise ValueError(f"{task.name}: final losses differ by more than {SAME_LOSS:g}: {listed}")


def _loss(problem: Problem, contender: Contender, rounds: int) -> float | None:
    x = contender(rounds, lambda: None)
    return problem.value(x.to(problem.start)) if x.numel() else None


def _timed(contender: Contender, rounds: int) -> Timing:
    gc.collect()
    before = _memory(reset=True)
    cpu, start = time.process_time(), time.perf_counter()
    marks = [start]
    contender(rounds, lambda: marks.append(time.perf_counter()))
    cpu = (time.process_time() - cpu) / rounds
    steps = [b - a for a, b in pairwise(marks)]
    peak = _memory()
    added = None if before is None or peak is None else (peak - before) / 1e6
    return Timing(
        round_ms=1e3 * median(steps[1:] or steps),
        first_ms=1e3 * steps[0],
        cpu_ms=1e3 * cpu,
        peak_mb=added,
    )


def _memory(reset: bool = False) -> float | None:
    """Bytes held now (with ``reset``, which forgets the peak) or at the peak since; None where
    Linux does not say.
    """
    with suppress(OSError, KeyError):
        if reset:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        with open("/proc/self/status") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024.0 * int(lines["VmRSS" if reset else "VmHWM"].split()[0])
    return None
