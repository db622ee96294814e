"""Steps from curvature beside schedules that were tuned: what `schedule="auto"` costs, and what it
saves.

On every problem each method runs with the theory's 2/(t+1), with fifteen schedules of which the
best is picked afterwards by the median residual of the same seeds, and with steps from curvature,
which nobody picked.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from fedfw.config import RunConfig
from fedfw_reproduction.cells import Cell
from fedfw_reproduction.document import Cell as TableCell
from fedfw_reproduction.document import Document
from fedfw_reproduction.figures import RESIDUAL, Claim, Done, Judged
from fedfw_reproduction.lab import was_run
from fedfw_reproduction.protocols import Scale

THEORY, AUTO = "convex", "auto"
TUNED = (
    THEORY,
    "nonconvex",
    *(f"constant:{eta}" for eta in (0.01, 0.02, 0.05, 0.1)),
    *(f"linear-decay:{eta}" for eta in (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)),
)
METHODS = tuple((name, momentum) for name in ("fedfw+", "frank-wolfe") for momentum in (0.0, 0.9))
PROBLEMS = (
    *(
        ("mnist", "labels:3", constraint)
        for constraint in ("l1:10", "l1:100", "l2:10", "nuclear:10")
    ),
    *(("cifar10", "labels:3", constraint) for constraint in ("l1:10", "l2:10", "nuclear:10")),
    ("cifar10", "iid", "l2:10"),
    *(
        (name, "iid", constraint)
        for name in ("a9a", "mushrooms")
        for constraint in ("l1:10", "l2:10")
    ),
    *(("synthetic:1,1", "client", constraint) for constraint in ("l1:10", "l2:10", "nuclear:10")),
)
QUICK_PROBLEMS = tuple(("digits", "labels:3", constraint) for constraint in ("l1:10", "l2:10"))
MODELS = {"a9a": "logistic", "mushrooms": "logistic"}
NEAR, NEAR_BY, WORSE = 1.15, 0.002, 1.1
"""Auto is near the best tuned one within 15 % or 0.002, and worse than 2/(t+1) beyond 10 %, however
little is left.
"""


class Row(NamedTuple):
    """Median residuals of one method on one problem: the theory's, the best tuned one's with its
    name, and auto's.
    """

    problem: tuple[str, str, str]
    method: tuple[str, float]
    theory: float
    best: float
    picked: str
    auto: float

    @property
    def near(self) -> bool:
        """Whether auto is as good as the best tuned schedule."""
        return self.auto <= max(NEAR * self.best, self.best + NEAR_BY)

    @property
    def worse(self) -> bool:
        """Whether auto is worse than what the theory says."""
        return self.auto > WORSE * self.theory


def schedules_of(
    problem: tuple[str, str, str], method: tuple[str, float], scale: Scale
) -> dict[str, Judged]:
    """One method on one problem, by its schedule."""
    (dataset, split, constraint), (algorithm, momentum) = problem, method
    base = RunConfig.of(
        dataset=dataset,
        model=MODELS.get(dataset, "mclr"),
        clients=10,
        partition=split,
        constraint=constraint,
        algorithm=algorithm,
        momentum=momentum,
        rounds=scale.rounds,
    )
    tried = (*(TUNED[::5] if scale.quick else TUNED), AUTO)
    return {
        schedule: Judged.of(
            Cell(base.having(schedule=schedule), seeds=scale.seeds, samples=scale.some)
        )
        for schedule in tried
    }


def cells(scale: Scale) -> dict[tuple[str, str, str], dict[tuple[str, float], dict[str, Judged]]]:
    """By problem, method and schedule."""
    problems = QUICK_PROBLEMS if scale.quick else PROBLEMS
    return {
        problem: {method: schedules_of(problem, method, scale) for method in METHODS}
        for problem in problems
    }


Found = Mapping[tuple[str, str, str], Mapping[tuple[str, float], Mapping[str, Done]]]


def rows(found: Found) -> list[Row]:
    """What was computed, problem by problem."""
    told = []
    for problem, by_method in found.items():
        for method, by_schedule in by_method.items():
            if not all(was_run(done.result) and done.has_optimum for done in by_schedule.values()):
                continue
            ends = {}
            for schedule, done in by_schedule.items():
                far = done.ends(RESIDUAL)
                ends[schedule] = (
                    median(far) if len(far) == done.task.seeds else float("inf")
                )  # some run blew up
            auto = ends.pop(AUTO)
            picked = min(ends, key=ends.__getitem__)
            told.append(Row(problem, method, ends[THEORY], ends[picked], picked, auto))
    return told


def show(scale: Scale, found: Found, page: Document) -> None:
    done = rows(found)
    table: list[tuple[TableCell, ...]] = []
    for row in done:
        (dataset, split, constraint), (algorithm, momentum) = row.problem, row.method
        verdict = scale.kind(False if row.worse else True if row.near else None)
        ends = (f"{row.theory:.4f}", f"{row.best:.4f}", row.picked, (f"{row.auto:.4f}", verdict))
        table.append(
            (f"{dataset}, {split}, {constraint}", f"{algorithm}, momentum {momentum:g}", *ends)
        )
    if not table:
        page.text("not run: no data")
        return
    page.table(("problem", "method", "2/(t+1)", "best tuned", "which", "auto"), table)
    page.table(
        ("method", "rows", "as good as the best tuned", "worse than 2/(t+1)"), _counted(done)
    )
    page.text(
        f"Median residual (F - F*)/(F(x^1) - F*) of {scale.seeds} seeds after {scale.rounds} rounds of one full "
        f"gradient, 10 clients, at most {scale.some} samples. The best schedule is picked by these very residuals."
    )


def _counted(found: list[Row]) -> list[tuple[TableCell, ...]]:
    """For each method, on how many problems auto is near the best tuned schedule, and on how many
    it is worse.
    """
    table: list[tuple[TableCell, ...]] = []
    for algorithm, momentum in METHODS:
        own = [row for row in found if row.method == (algorithm, momentum)]
        counts = (len(own), sum(row.near for row in own), sum(row.worse for row in own))
        table.append((f"{algorithm}, momentum {momentum:g}", *map(str, counts)))
    return table


def claims(scale: Scale, found: Found) -> list[Claim]:
    done = rows(found)
    if not done:
        return []
    near, worse, many = sum(row.near for row in done), sum(row.worse for row in done), len(done)
    return [
        Claim(
            "auto is within 15 % or 0.002 of the best tuned schedule on four problems in five",
            near >= 0.8 * many,
            f"{near} of {many}",
            "steps",
        ),
        Claim(
            "auto is worse than 2/(t+1) by more than 10 % on at most one problem in ten",
            worse <= 0.1 * many,
            f"{worse} of {many}",
            "steps",
        ),
    ]
