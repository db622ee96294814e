"""How a run goes, beside the problem and the algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedfw.privacy.guarantee import Privacy
from fedfw.simulation.participation import Attendance


@dataclass(frozen=True)
class Options:
    """How a run goes, beside the problem and the algorithm. See `simulate`."""

    rounds: int = 100
    participation: float | Sequence[float] | Attendance = 1.0
    relax: Mapping[int, Any] | None = None
    local_steps: int = 1
    batch_size: int | None = None
    tol: float | None = None
    eval_every: int = 1
    seed: int = 0
    device: str | torch.device | None = None
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "local_steps", "eval_every"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}, expected a whole number of at least 1")
        if self.batch_size is not None and (not isinstance(self.batch_size, int) or self.batch_size < 1):
            raise ValueError(f"batch_size={self.batch_size!r}, expected a whole number of at least 1, or None for all")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed!r}, expected a whole number of at least 0 (and below 2^63)")
        if self.tol is not None and not self.tol > 0:
            raise ValueError(f"tol={self.tol!r}, expected a positive number or None")
