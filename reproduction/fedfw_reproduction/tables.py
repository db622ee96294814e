"""What the three tables share: lines of cells under columns, the paper's number beside them, and the reasons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import NamedTuple

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.models import MODELS
from fedfw.report import document
from fedfw.report.document import Document
from fedfw.report.tables import human_bytes
from fedfw_reproduction.cells import Cell, Central, accuracies, average, finals, residuals, seconds_of
from fedfw_reproduction.lab import Json, Results, Task, was_run
from fedfw_reproduction.protocols import Scale


@dataclass(frozen=True)
class Line:
    """One row: an algorithm on a task, under one or several protocols.

    Parameters
    ----------
    data, split, constraint : str
        As they are called in the table.
    algorithm : str
        The algorithm's name, or the title of ours.
    paper : float or None
        The paper's accuracy in per cent; None where it has none. For ours its best one on that task, of the algorithm
        ``paper_by``.
    cells : mapping of str to Cell
        By the name of the column.
    paper_by : str
        Whose number ``paper`` is, where it is not this algorithm's own.
    """

    data: str
    split: str
    constraint: str
    algorithm: str
    paper: float | None
    cells: Mapping[str, Cell] = field(hash=False)
    paper_by: str = ""

    @property
    def task(self) -> tuple[str, str, str]:
        return self.data, self.split, self.constraint

    @property
    def label(self) -> str:
        return ALGORITHMS[self.algorithm].title if self.algorithm in ALGORITHMS else self.algorithm


def tasks_of(lines: Sequence[Line], columns: Sequence[str]) -> list[Task]:
    """Column by column, so that an interrupted table has whole ones: the cells, and the optima of convex problems."""
    cells = [line.cells[column] for column in columns for line in lines if column in line.cells]
    found: list[Task] = []
    for cell in cells:
        found += [Central.of(cell), cell] if _is_convex(cell) else [cell]
    return found


def show_table(
    title: str,
    lines: Sequence[Line],
    columns: Sequence[str],
    scale: Scale,
    results: Results,
    page: Document,
    why: Reasons,
) -> None:
    """Accuracies beside the paper's, how many cells meet it and why others do not, and the details of every cell."""
    page.text(verdict(lines, results))
    page.table(
        ("data", "split", "set", "algorithm", "paper", *columns, "optimum"),
        [_row(line, columns, scale, results) for line in lines],
    )
    colours = (
        "nothing is coloured, because less was run than for the paper's numbers"
        if scale.quick
        else "green (bold) where it reaches the paper's number, red where it does not"
    )
    page.text(
        f"Test accuracy in per cent after the last round, mean ± deviation over the seeds; {colours}. Optimum: what "
        "the solution of the same problem (joint set, radius 10) itself scores; a higher number means that the problem "
        "was not solved, not that it was solved better. On synthetic data a seed is another draw of the data. Images "
        "are in [0, 1], for CNNs in [-1, 1]."
    )
    _explain(lines, results, page, why)
    for column in columns:
        _details(title, column, lines, results, page)


Reasons = Callable[[Line], str]
"""What is known of how the paper's number was made."""


def meets(line: Line, result: Json) -> bool | None:
    """Whether the mean accuracy reaches the paper's (a blown-up cell does not); None where nothing can be compared."""
    if line.paper is None or not was_run(result):
        return None
    values = finals(result, "accuracy")
    return bool(values) and round(100 * mean(values), 1) >= round(line.paper, 1)


def _row(line: Line, columns: Sequence[str], scale: Scale, results: Results) -> list[document.Cell]:
    by = f" (best: {ALGORITHMS[line.paper_by].title})" if line.paper_by else ""
    row: list[document.Cell] = [*line.task, line.label, "-" if line.paper is None else f"{line.paper:.1f}{by}"]
    for column in columns:
        row.append(_accuracy(line, column, scale, results) if column in line.cells else "")
    first = next(iter(line.cells.values()))
    central = _central(first, results)
    return [*row, accuracies([s["accuracy"] for s in central["seeds"]]) if was_run(central) else "-"]


def _accuracy(line: Line, column: str, scale: Scale, results: Results) -> document.Cell:
    result, seeds = results[line.cells[column]], line.cells[column].seeds
    if not was_run(result):
        return f"not run: {result['not_run']}"
    text = accuracies(finals(result, "accuracy"))
    if result["runs"] and (lost := seeds - len(result["runs"])):
        text += f" ({lost} of {seeds} seeds blew up)"
    return text, scale.kind(meets(line, result))


def verdict(lines: Sequence[Line], results: Results) -> str:
    """How many cells of each column reach the paper's number, and why the others do not."""
    counts: dict[str, list[bool]] = {}
    for line in lines:
        for column, cell in line.cells.items():
            if (met := meets(line, results[cell])) is not None:
                counts.setdefault(column, []).append(met)
    if not counts:
        return "No cell could be run."
    reached = "; ".join(f"{column}: {sum(met)} of {len(met)}" for column, met in counts.items())
    kinds = Counter(shortfall.kind for shortfall in _shortfalls(lines, results))
    below = f" Below it, {'; '.join(f'{count} {kind}' for kind, count in kinds.items())}." if kinds else ""
    return f"Cells that reach the paper's number: {reached}.{below}"


class Shortfall(NamedTuple):
    """A cell below the paper's number: which, what kind of reason, and the reason in words."""

    line: Line
    column: str
    kind: str
    why: str


def _shortfalls(lines: Sequence[Line], results: Results) -> list[Shortfall]:
    found = []
    for line in lines:
        for column, cell in line.cells.items():
            result = results[cell]
            if line.paper is None or meets(line, result) is not False:
                continue
            kind, why = "networks, of which no optimum is known", ""
            if not result["runs"]:
                kind = why = "blew up with every seed"
            elif was_run(central := _central(cell, results)):
                best = 100 * mean(s["accuracy"] for s in central["seeds"])
                far = mean(residuals(result, central))
                if best < line.paper:
                    kind = "where the optimum itself scores less"
                    why = f"the optimum itself scores {best:.1f}: only an unsolved problem can score more"
                else:
                    kind = "where the optimum would reach it and the run did not get there"
                    why = f"{far:.1%} of the way to the optimum ({best:.1f}) is left"
            found.append(Shortfall(line, column, kind, why))
    return found


def _explain(lines: Sequence[Line], results: Results, page: Document, why: Reasons) -> None:
    rows = []
    for line, column, _, reason in _shortfalls(lines, results):
        reached = accuracies(finals(results[line.cells[column]], "accuracy"))
        known = "; ".join(text for text in (reason, why(line)) if text)
        rows.append((*line.task, line.label, column, f"{reached} for {line.paper:.1f}", known or "-"))
    if rows:
        page.text("Cells below the paper's number, and what is known about them:")
        page.table(("data", "split", "set", "algorithm", "column", "reached", "why"), rows)


def _details(title: str, column: str, lines: Sequence[Line], results: Results, page: Document) -> None:
    rows = []
    for line in lines:
        cell = line.cells.get(column)
        if cell is None or not was_run(result := results[cell]) or not result["runs"]:
            continue
        central = _central(cell, results)
        chosen = ", ".join(f"{key} {value}" for key, value in result["chosen"].items()) + _at_the_edge(cell, result)
        rows.append(
            (
                *line.task,
                line.label,
                accuracies(finals(result, "accuracy")),
                average(residuals(result, central), "{:.4f}".format) if was_run(central) else "-",
                f"{max(s['uncertainty'] for s in central['seeds']):.4f}" if was_run(central) else "-",
                average(finals(result, "gap"), "{:.3g}".format),
                human_bytes(mean(finals(result, "bytes_up"))),
                human_bytes(mean(finals(result, "bytes_down"))),
                f"{seconds_of(result):.1f}",
                f"{result['runs'][0]['rounds']}",
                chosen or "-",
            )
        )
    if rows:
        page.heading(f"{title}, column “{column}” in detail", 3)
        what = ("data", "split", "set", "algorithm", "accuracy", "residual", "F* known to")
        page.table((*what, "gap", "up", "down", "s", "rounds", "chosen"), rows)


def _at_the_edge(cell: Cell, result: Json) -> str:
    """What to know about the choice: at the end of the grid, or among points that blew up."""
    ends = [key for key, values in cell.grid if len(values) > 2 and result["chosen"][key] in (values[0], values[-1])]
    lost = sum(not math.isfinite(trial["held_out_loss"]) for trial in result["trials"])
    notes = [f"{key} at the edge" for key in ends] + ([f"{lost} points blew up"] if lost else [])
    return f" ({'; '.join(notes)})" if notes else ""


def _central(cell: Cell, results: Results) -> Json:
    """The optimum of the cell's problem; there is none to be had for networks."""
    return results[Central.of(cell)] if _is_convex(cell) else {"not_run": "not convex"}


def _is_convex(cell: Cell) -> bool:
    return MODELS[cell.config.model or ""].convex
