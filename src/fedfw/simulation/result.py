"""What a simulation gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedfw.algorithms.base import Algorithm, Plan
from fedfw.problems.problem import Problem
from fedfw.rounds.records import History
from fedfw.rounds.setup import Certificate


@dataclass(repr=False)
class Run:
    """What a simulation gives back.

    Parameters
    ----------
    problem, algorithm, plan : Problem, Algorithm, Plan
        What was run; the algorithm and its plan have all defaults filled in.
    x : Tensor
        xbar, (p,), in ``named_parameters()`` order.
    feasible : Tensor
        (p,): what is judged and returned: xbar, or with relaxed clients a point of the set near it.
    history : History
        A record of each round.
    lower_bound : float or None
        The best proven lower bound on the optimum; where none is better, what the loss is never below.
    certificate : Certificate
        What the lower bound rests on, or why there is none.
    stopped : str
        Why the run ended.
    dense_sums : int
        How many dense sums of gradients the server was given.
    out : Path or None
        The run folder.
    privacy : str or None
        What was promised and how it was kept, in words.

    Examples
    --------
    >>> import fedfw
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.FrankWolfe(fedfw.Box(-1.0, 1.0)), rounds=5)
    >>> float(run.x), run.history[-1].loss, run.stopped
    (1.0, 4.0, 'all that were asked for')
    """

    problem: Problem
    algorithm: Algorithm
    plan: Plan
    x: Tensor
    feasible: Tensor
    history: History
    lower_bound: float | None
    certificate: Certificate
    stopped: str
    dense_sums: int = 0
    out: Path | None = None
    privacy: str | None = None

    def __repr__(self) -> str:
        last = f", last: {self.history[-1]}" if self.history else ""
        return f"Run({self.algorithm.name}, {len(self.history)} rounds{last})"

    @property
    def model(self) -> nn.Module:
        """A trained copy of the module, inside the set."""
        return self.problem.trained(self.feasible)

    def plot(self) -> Any:
        """A matplotlib figure of the run."""
        from fedfw.report.plots import plot_runs

        return plot_runs({self.algorithm.name: self.history})
