"""What a simulation gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedfw.algorithms.base import Algorithm, Plan
from fedfw.problems.problem import Problem
from fedfw.simulation.history import History


@dataclass(repr=False)
class Run:
    """What a simulation gives back."""

    problem: Problem
    algorithm: Algorithm
    plan: Plan
    x: Tensor
    """xbar, (p,), in ``named_parameters()`` order."""
    feasible: Tensor
    """What is judged and returned: xbar, or with relaxed clients the nearest point that the set holds."""
    history: History
    lower_bound: float | None
    certificate: str
    """What the lower bound rests on, or why there is none."""
    stopped: str
    """Why the run ended."""
    dense_sums: int = 0
    """How many dense sums of gradients (or of duals) the server was given."""
    out: Path | None = None
    privacy: str | None = None
    """What was promised and how it was kept, in words."""

    def __repr__(self) -> str:
        return f"Run({self.algorithm.name}, {len(self.history)} rounds, last: {self.history[-1]})"

    @property
    def model(self) -> nn.Module:
        """A trained copy of the module, inside the set."""
        return self.problem.trained(self.feasible)

    def plot(self) -> Any:
        """A matplotlib figure of the run."""
        from fedfw.report.plots import plot_runs

        return plot_runs({self.algorithm.name: self.history})
