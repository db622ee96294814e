"""What the three tables share: lines of cells under columns, the paper's number beside them, and
the reasons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, NamedTuple

from fedfw import ALGORITHMS
from fedfw.models import MODELS
from fedfw.report import human_bytes
from fedfw_reproduction.cells import Cell
from fedfw_reproduction.document import Cell as TableCell
from fedfw_reproduction.document import Document
from fedfw_reproduction.figures import RESIDUAL, Done, Judged, accuracies, average, tasks_in
from fedfw_reproduction.lab import Wanted, was_run
from fedfw_reproduction.protocols import Scale


@dataclass(frozen=True)
class Line:
    """One row: an algorithm on a task.

    Parameters
    ----------
    data, split, constraint : str
        As they are called in the table.
    algorithm : str
        The algorithm's name, or the title of ours.
    paper : float or None
        The paper's accuracy in per cent; None where it has none. For ours its best one on that
        task, of the algorithm ``paper_by``.
    paper_by : str
        Whose number ``paper`` is, where it is not this algorithm's own.
    """

    data: str
    split: str
    constraint: str
    algorithm: str
    paper: float | None
    paper_by: str = ""

    @property
    def task(self) -> tuple[str, str, str]:
        return self.data, self.split, self.constraint

    @property
    def label(self) -> str:
        return ALGORITHMS[self.algorithm].title if self.algorithm in ALGORITHMS else self.algorithm


Wants = Mapping[Line, Mapping[str, Cell | Judged]]
"""What is to be computed, by row and column."""
Lines = Mapping[Line, Mapping[str, Done]]
"""What was done, by row and column."""


def judged(lines: Mapping[Line, Mapping[str, Cell]]) -> Wants:
    """The cells of rows and columns, beside the optimum where the problem is convex; of networks
    none is known.
    """
    return {
        line: {
            column: Judged.of(cell) if MODELS[cell.config.model or ""].convex else cell
            for column, cell in row.items()
        }
        for line, row in lines.items()
    }


def by_columns(lines: Mapping[Line, Mapping[str, Any]], columns: Sequence[str]) -> list[Wanted]:
    """The tasks column by column, so that an interrupted table has whole ones."""
    return tasks_in([row[column] for column in columns for row in lines.values() if column in row])


def show_table(
    title: str, lines: Lines, columns: Sequence[str], scale: Scale, page: Document, why: Reasons
) -> None:
    """Accuracies beside the paper's, how many cells meet it and why others do not, and the details
    of every cell.
    """
    page.text(verdict(lines))
    page.table(
        ("data", "split", "set", "algorithm", "paper", *columns, "optimum"),
        [_row(line, row, columns, scale) for line, row in lines.items()],
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
    shortfalls = _shortfalls(lines)
    if shortfalls:
        page.text("Cells below the paper's number, and what is known about them:")
        header = ("data", "split", "set", "algorithm", "column", "reached", "why")
        page.table(header, [_explained(shortfall, why) for shortfall in shortfalls])
    for column in columns:
        rows = [
            _details(line, row[column])
            for line, row in lines.items()
            if column in row and row[column].was_run
        ]
        if rows:
            page.heading(f"{title}, column “{column}” in detail", 3)
            what = ("data", "split", "set", "algorithm", "accuracy", "residual", "F* known to")
            page.table((*what, "gap", "up", "down", "s", "rounds", "chosen"), rows)


Reasons = Callable[[Line], str]
"""What is known of how the paper's number was made."""


def meets(line: Line, done: Done) -> bool | None:
    """Whether the mean accuracy reaches the paper's (a blown-up cell does not); None where nothing
    can be compared.
    """
    if line.paper is None or not was_run(done.result):
        return None
    values = done.ends("accuracy")
    return bool(values) and round(100 * mean(values), 1) >= round(line.paper, 1)


def _row(
    line: Line, row: Mapping[str, Done], columns: Sequence[str], scale: Scale
) -> list[TableCell]:
    by = f" (best: {ALGORITHMS[line.paper_by].title})" if line.paper_by else ""
    paper = "-" if line.paper is None else f"{line.paper:.1f}{by}"
    reached = [_accuracy(line, row[column], scale) if column in row else "" for column in columns]
    first = next(iter(row.values()))
    optimum = accuracies(first.of_optimum("accuracy")) if first.has_optimum else "-"
    return [*line.task, line.label, paper, *reached, optimum]


def _accuracy(line: Line, done: Done, scale: Scale) -> TableCell:
    if not was_run(done.result):
        return f"not run: {done.result['not_run']}"
    text, seeds = accuracies(done.ends("accuracy")), done.task.seeds
    if done.was_run and (lost := seeds - len(done.result["runs"])):
        text += f" ({lost} of {seeds} seeds blew up)"
    return text, scale.kind(meets(line, done))


def verdict(lines: Lines) -> str:
    """How many cells of each column reach the paper's number, and why the others do not."""
    counts: dict[str, list[bool]] = {}
    for line, row in lines.items():
        for column, done in row.items():
            if (met := meets(line, done)) is not None:
                counts.setdefault(column, []).append(met)
    if not counts:
        return "No cell could be run."
    reached = "; ".join(f"{column}: {sum(met)} of {len(met)}" for column, met in counts.items())
    kinds = Counter(shortfall.kind for shortfall in _shortfalls(lines))
    below = (
        f" Below it, {'; '.join(f'{count} {kind}' for kind, count in kinds.items())}."
        if kinds
        else ""
    )
    return f"Cells that reach the paper's number: {reached}.{below}"


class Shortfall(NamedTuple):
    """A cell below the paper's number: which, what kind of reason, and the reason in words."""

    line: Line
    column: str
    done: Done
    kind: str
    why: str


def _shortfalls(lines: Lines) -> list[Shortfall]:
    return [
        Shortfall(line, column, done, *_reason(line.paper, done))
        for line, row in lines.items()
        for column, done in row.items()
        if line.paper is not None and meets(line, done) is False
    ]


def _reason(paper: float, done: Done) -> tuple[str, str]:
    """Why a cell is below the paper's number: the kind of reason, and the reason in words."""
    if not done.was_run:
        return ("blew up with every seed",) * 2
    if not done.has_optimum:
        return "networks, of which no optimum is known", ""
    best = 100 * mean(done.of_optimum("accuracy"))
    if best < paper:
        why = f"the optimum itself scores {best:.1f}: only an unsolved problem can score more"
        return "where the optimum itself scores less", why
    why = f"{done.end(RESIDUAL):.1%} of the way to the optimum ({best:.1f}) is left"
    return "where the optimum would reach it and the run did not get there", why


def _explained(shortfall: Shortfall, why: Reasons) -> Sequence[str]:
    line = shortfall.line
    reached = f"{accuracies(shortfall.done.ends('accuracy'))} for {line.paper:.1f}"
    known = "; ".join(text for text in (shortfall.why, why(line)) if text)
    return (*line.task, line.label, shortfall.column, reached, known or "-")


def _details(line: Line, done: Done) -> Sequence[str]:
    known = done.has_optimum
    return (
        *line.task,
        line.label,
        accuracies(done.ends("accuracy")),
        average(done.ends(RESIDUAL), "{:.4f}".format) if known else "-",
        f"{max(done.of_optimum('uncertainty')):.4f}" if known else "-",
        average(done.ends("gap"), "{:.3g}".format),
        human_bytes(done.end("bytes_up")),
        human_bytes(done.end("bytes_down")),
        f"{done.seconds:.1f}",
        f"{done.result['runs'][0]['rounds']}",
        done.chosen + _at_the_edge(done) or "-",
    )


def _at_the_edge(done: Done) -> str:
    """What to know about the choice: at the end of the grid, or among points that blew up."""
    chosen, grid = done.result["chosen"], done.task.grid
    ends = [
        key for key, values in grid if len(values) > 2 and chosen[key] in (values[0], values[-1])
    ]
    lost = sum(not math.isfinite(trial["held_out_loss"]) for trial in done.result["trials"])
    notes = [f"{key} at the edge" for key in ends] + ([f"{lost} points blew up"] if lost else [])
    return f" ({'; '.join(notes)})" if notes else ""
