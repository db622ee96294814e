"""What a simulation gives back."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedfw.algorithms.contract import Algorithm, Plan
from fedfw.notebook import html_card
from fedfw.problems.problem import Problem
from fedfw.report.tables import human_bytes
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
        xbar, (p,), in ``named_parameters()`` order; in the parameter's shape where the model is one
        matrix. It lies in the set up to the rounding of the rounds: 1e-6 of the set's size in
        float64, and 1e-3 in float32. With relaxed clients it may lie outside.
    feasible : Tensor
        In the same shape, the model that is returned. It is xbar, or with relaxed clients a point
        of the set near it. Where the rounding of the rounds has moved that out of the set by more
        than 1e-6 of the set's size, it is the projection, if the set has one.
    history : History
        A record of each round.
    lower_bound : float or None
        The best proven lower bound on the optimum; where none is better, what the loss is never
        below.
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
    >>> run
    Run(Frank-Wolfe on Box(lo=-1.0, hi=1.0), 5 rounds: loss 4, gap 0, optimum at least 4, sent up 90
    B)

    A run can be pickled where its problem can; the copy's plan has no schedule. Unpickle nothing
    but your own files.
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
        facts = (
            f"{name} {value}"
            for name, value in self._facts().items()
            if name not in ("algorithm", "rounds")
        )
        return f"Run({self._facts()['algorithm']}, {len(self.history)} rounds: {', '.join(facts)})"

    def _repr_html_(self) -> str:
        return html_card("Run", self._facts() | {"problem": repr(self.problem), "folder": self.out})

    def _facts(self) -> dict[str, str]:
        """What is worth knowing of the run, in words, without what is not known."""
        latest = self.history.last
        numbers = {name: latest(name) for name in ("loss", "accuracy", "gap", "epsilon")}
        shown = {name: f"{value:.4g}" for name, value in numbers.items() if value is not None}
        if self.lower_bound is not None and self.lower_bound != self.problem.floor:
            shown["optimum at least"] = f"{self.lower_bound:.4g}"
        rounds = f"{len(self.history)} ({self.stopped})"
        sent = human_bytes(self.history.total("bytes_up"))
        algorithm = (
            f"{self.algorithm.title or self.algorithm.name} on {self.algorithm.constraint!r}"
        )
        return {"algorithm": algorithm, "rounds": rounds, **shown, "sent up": sent}

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: everything but the schedule and the stopwatch of the plan, which are
        functions.
        """
        return self.__dict__ | {"plan": replace(self.plan, schedule=None, watch=_unwatched)}

    @property
    def model(self) -> nn.Module:
        """A trained copy of the module, inside the set."""
        return self.problem.trained(self.feasible)

    def plot(self, path: str | Path | None = None) -> Any:
        """A matplotlib figure of the run.

        Parameters
        ----------
        path : path, optional
            A file to save it to as well, which ends in .png, .svg or .pdf.

        Returns
        -------
        matplotlib.figure.Figure
            A notebook shows it.
        """
        from fedfw.report.plots import plot_runs, save_figure

        figure = plot_runs({self.algorithm.name: self.history})
        if path is not None:
            save_figure(figure, Path(path))
        return figure


def _unwatched(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return function
