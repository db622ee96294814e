"""What the figures share: panels, mean curves over the seeds, their numbers as CSV, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from fedfw.report.document import csv_text
from fedfw_reproduction.cells import residuals_of
from fedfw_reproduction.lab import Json, was_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def panels(count: int, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * count + 0.4, height), layout="constrained")
    axes = list(figure.subplots(1, count, squeeze=False)[0])
    for axis in axes:
        axis.grid(alpha=0.3, which="both")
    return figure, axes


def mean_curve(result: Json, column: str) -> list[float]:
    """A column's mean over the seeds at every evaluated round."""
    curves = [run["curve"][column] for run in result["runs"]]
    return [mean(values) for values in zip(*curves, strict=True)]


def residual_curve(result: Json, central: Json) -> list[float]:
    """The mean residual over the seeds at every evaluated round; at least 1e-6, for logarithmic axes."""
    curves = [residuals_of(run, central) for run in result["runs"]]
    return [max(mean(values), 1e-6) for values in zip(*curves, strict=True)]


def draw(axis: Axes, result: Json, column: str, label: str, **style: Any) -> None:
    """A mean curve over rounds."""
    axis.plot(mean_curve(result, "round"), mean_curve(result, column), label=label, **style)


def curves_csv(results: Mapping[str, Json], columns: Sequence[str], centrals: Mapping[str, Json] | None = None) -> str:
    """One row for each label, seed and evaluated round; with the optima, residuals too."""
    rows = []
    for label, result in results.items():
        for run in result["runs"]:
            values = [run["curve"][name] for name in ("round", *columns)]
            if centrals is not None:
                values.append(residuals_of(run, centrals[label]))
            rows += [(label, run["seed"], *row) for row in zip(*values, strict=True)]
    also = () if centrals is None else ("residual",)
    return csv_text(("setting", "seed", "round", *columns, *also), rows)


def all_run(results: Sequence[Json]) -> bool:
    """Whether all of them have numbers."""
    return all(was_run(result) and result["runs"] for result in results)
