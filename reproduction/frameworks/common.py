"""What the frameworks' scripts share. It runs without fedfw."""

from __future__ import annotations

import json
import resource
import sys
import time
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

CLASSES = 10


@lru_cache(maxsize=1)
def data(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all clients, read once a process."""
    torch.set_num_threads(1)
    held = np.load(path)
    return torch.from_numpy(held["inputs"]), torch.from_numpy(held["targets"])


def task() -> tuple[str, dict, Path]:
    """Where the data are, the task's words and where the answer goes, from the command line."""
    return sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])


def module(spec: dict) -> nn.Module:
    """The model at its start: that of fedfw_reproduction.bench."""
    torch.manual_seed(0)
    features = spec["features"]
    if spec["model"] == "softmax":
        layer = nn.Linear(features, CLASSES)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer
    if spec["model"] == "mlp":
        return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    side = features // 4
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * side * side, CLASSES)),
    )


class Watch:
    """Marks of rounds, and a report of them."""

    def __init__(self) -> None:
        self.marks = [time.perf_counter()]
        self.cpu = _cpu()

    def mark(self) -> None:
        self.marks.append(time.perf_counter())

    def report(self, out: Path, x: torch.Tensor) -> None:
        steps = [b - a for a, b in pairwise(self.marks)]
        peak = sum(
            resource.getrusage(who).ru_maxrss
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        numbers = {
            "round_ms": 1e3 * median(steps[1:] or steps),
            "first_ms": 1e3 * steps[0],
            "cpu_ms": 1e3 * (_cpu() - self.cpu) / len(steps),
            "peak_mb": peak / 1e3,
            "x": x.tolist(),
        }
        out.write_text(json.dumps(numbers))


def _cpu() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)
