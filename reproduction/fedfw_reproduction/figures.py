"""What sections share: tasks with their results, panels, numbers as CSV, and verdicts on claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, mean, stdev
from typing import TYPE_CHECKING, Any

from fedfw_reproduction.cells import Central
from fedfw_reproduction.document import csv_text
from fedfw_reproduction.lab import Json, Results, Wanted, was_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESIDUAL = "residual"
"""The column (F - F*) / (F(x^1) - F*), which a curve has where the optimum F* is known."""


@dataclass(frozen=True)
class Claim:
    """Something the paper says, what was found, and where to look.

    Parameters
    ----------
    text : str
        What the paper says.
    holds : bool or None
        Whether it does; None where it could not be tested.
    found : str
        The numbers.
    where : str
        The section that has them.
    """

    text: str
    holds: bool | None
    found: str
    where: str


@dataclass(frozen=True)
class Judged:
    """A task beside the optimum that its runs are measured from; by default that of its problem."""

    task: Any
    optimum: Central

    @classmethod
    def of(cls, task: Any, optimum: Central | None = None) -> Judged:
        """A cell, or a task that has one, with its optimum."""
        return cls(task, Central.of(getattr(task, "cell", task)) if optimum is None else optimum)


@dataclass(frozen=True)
class Done:
    """A task with its result, and the optimum that its runs are measured from, if one is known."""

    task: Any
    result: Json
    optimum: Json | None = None

    @property
    def was_run(self) -> bool:
        """Whether there are runs."""
        return was_run(self.result) and bool(self.result["runs"])

    @property
    def has_optimum(self) -> bool:
        """Whether the optimum of its problem is known."""
        return self.optimum is not None and was_run(self.optimum)

    def of_optimum(self, name: str) -> list[float]:
        """What is known of the optimum, such as its accuracy, for each seed."""
        assert self.optimum is not None
        return [seed[name] for seed in self.optimum["seeds"]]

    def column(self, run: Json, name: str) -> list[Any]:
        """A column of a run, one value for each evaluated round."""
        if name != RESIDUAL:
            found: list[Any] = run["curve"][name]
            return found
        assert self.optimum is not None
        optimum = self.optimum["seeds"][run["seed"]]
        unit = max(optimum["start_value"] - optimum["value"], 1e-300)
        return [(loss - optimum["value"]) / unit for loss in run["curve"]["loss"]]

    def curve(self, name: str) -> list[float]:
        """A column's mean over the seeds; residuals are at least 1e-6, for logarithmic axes."""
        columns = [self.column(run, name) for run in self.result["runs"]]
        means: list[float] = [mean(values) for values in zip(*columns, strict=True)]
        return [max(value, 1e-6) for value in means] if name == RESIDUAL else means

    def ends(self, name: str) -> list[float]:
        """The last value of a column, for each seed that has one."""
        ends = [self.column(run, name)[-1] for run in self.result["runs"]]
        return [value for value in ends if value is not None]

    def end(self, name: str) -> float:
        """The mean over the seeds of a column's last values."""
        return mean(self.ends(name))

    @property
    def seconds(self) -> float:
        """A run's mean seconds, evaluations apart."""
        spent = [run["seconds"] for run in self.result["runs"]]
        return fmean(
            sum(seconds for part, seconds in one.items() if part != "evaluation") for one in spent
        )

    def seconds_in(self, part: str) -> float:
        """A run's mean seconds in one of its parts."""
        return fmean(run["seconds"][part] for run in self.result["runs"])

    @property
    def chosen(self) -> str:
        """What was chosen from the grid, in words."""
        return ", ".join(f"{key} {value}" for key, value in self.result["chosen"].items())


def tasks_in(cells: Any) -> list[Wanted]:
    """The tasks in mappings and lists of tasks, and the optima that they are measured from."""
    if isinstance(cells, Mapping):
        return tasks_in(list(cells.values()))
    if isinstance(cells, list):
        return [task for part in cells for task in tasks_in(part)]
    return [cells.optimum, cells.task] if isinstance(cells, Judged) else [cells]


def filled(cells: Any, results: Results) -> Any:
    """The same mappings and lists with what was done in the place of each task."""
    if isinstance(cells, Mapping):
        return {key: filled(part, results) for key, part in cells.items()}
    if isinstance(cells, list):
        return [filled(part, results) for part in cells]
    if isinstance(cells, Judged):
        return Done(cells.task, results[cells.task], results[cells.optimum])
    return Done(cells, results[cells])


def all_run(found: Any) -> bool:
    """Whether everything in mappings and lists has numbers."""
    if isinstance(found, Mapping):
        return all_run(list(found.values()))
    return all(map(all_run, found)) if isinstance(found, list) else found.was_run


def panels(count: int, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * count + 0.4, height), layout="constrained")
    axes = list(figure.subplots(1, count, squeeze=False)[0])
    for axis in axes:
        axis.grid(alpha=0.3, which="both")
    return figure, axes


def curves_csv(found: Mapping[str, Done], columns: Sequence[str]) -> str:
    """One row for each label, seed and evaluated round."""
    rows = []
    for label, done in found.items():
        for run in done.result["runs"]:
            values = [done.column(run, name) for name in ("round", *columns)]
            rows += [(label, run["seed"], *row) for row in zip(*values, strict=True)]
    return csv_text(("setting", "seed", "round", *columns), rows)


def average(values: list[float], form: Callable[[float], str] = "{:.3g}".format) -> str:
    """Mean and standard deviation over the seeds."""
    if not values:
        return "blew up"
    if len(values) == 1 or math.isnan(values[0]):
        return form(values[0])
    return f"{form(mean(values))} ± {form(stdev(values))}"


def accuracies(values: list[float]) -> str:
    """In per cent: mean ± standard deviation over the seeds."""
    if not values:
        return "blew up"
    spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"
