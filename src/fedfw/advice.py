"""Which method to use: the best measured one among those that may be used, with the measurement
behind it.

The measurements are those of ``fedfw reproduce frontier``. It writes ``measured.json`` with those
that win for some permission and some budget, and the package has a copy. Nothing is advised that
was not measured, and what differs between the measured problem and the one that is asked about is
said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from fedfw.report.tables import human_bytes
from fedfw.sets import SETS, ConstraintSet, parse_set

SEES = ("atoms", "numbers", "sums", "gradients")
"""Levels of what the server may see of a client, from little to much."""
DIFFER = ("little", "much")
"""How different the clients' data are."""
PROJECTION = ("auto", "cheap", "costly")
"""Costs of the server's projection on the set; "auto" goes by what the set's projection costs."""
GOAL = 0.01
"""The residual that is asked for where no budget of bytes is given."""
_CHEAP_PROJECTIONS = ("p", "p log p")
_SHOWS = {
    "atoms": "atoms alone",
    "numbers": "two numbers of each client beside atoms",
    "sums": "sums of gradients beside atoms",
    "gradients": "gradients or models",
}


# --- the table ---


class MeasuredPoint(NamedTuple):
    """The cost and the result of a method.

    Bytes of all clients together, rounds, residual, test score, the number of its setting, and for
    how many rounds to ask: more than ``rounds`` where the steps depend on them and the point lies
    before the end.
    """

    up: int
    down: int
    rounds: int
    residual: float
    test: float | None
    setting: int
    of: int


@dataclass(frozen=True)
class MeasuredMethod:
    """One method on one problem; its points have falling residuals at rising bytes up."""

    title: str
    algorithm: str
    sees: str
    projects: bool
    settings: tuple[Mapping[str, Any], ...]
    points: tuple[MeasuredPoint, ...]


@dataclass(frozen=True)
class MeasuredProblem:
    """One problem: its set, how much its clients differ, how many they are, whether all take part,
    what is tested.
    """

    title: str
    constraint: str
    differ: str
    clients: int
    partial: bool
    scored_by: str
    methods: tuple[MeasuredMethod, ...]


@dataclass(frozen=True)
class Measured:
    """All problems; ``quick`` for small ones on the digits, which stand in until the study was run
    in full.
    """

    problems: tuple[MeasuredProblem, ...]
    quick: bool

    @classmethod
    def read(cls, path: Path | Traversable) -> Measured:
        """Return a table that ``fedfw reproduce frontier`` wrote; refuses a file that is damaged or
        empty.
        """
        from pydantic import TypeAdapter, ValidationError  # which takes a while to import

        try:
            table = TypeAdapter(Measured).validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ValueError(
                f"{path} is damaged, expected what fedfw reproduce frontier writes: {reason}"
            ) from None
        if not table.problems:
            raise ValueError(f"{path} has no problems, expected at least one that was measured")
        return table


@cache
def measured() -> Measured:
    """Return the table that comes with fedfw.

    Examples
    --------
    >>> len(measured().problems) > 0
    True
    """
    return Measured.read(files("fedfw") / "measured.json")


# --- advice ---


@dataclass(frozen=True)
class Advice:
    """A method, why, and what was measured.

    Parameters
    ----------
    problem : MeasuredProblem
        The measured problem that is nearest to what was asked.
    method : MeasuredMethod
        What is advised.
    point : MeasuredPoint
        The measurement behind it.
    reasons : tuple of str
        Why, in sentences, and what differs between what was asked and what was measured.
    """

    problem: MeasuredProblem
    method: MeasuredMethod
    point: MeasuredPoint
    reasons: tuple[str, ...]

    @property
    def flags(self) -> str:
        """Return the method as flags of ``fedfw run``."""
        chosen = self.method.settings[self.point.setting]
        own = (f" --{name.replace('_', '-')} {value}" for name, value in chosen.items())
        return f"--algorithm {self.method.algorithm}{''.join(own)}"

    @property
    def row(self) -> str:
        """Return in words what the advised method reached on the measured problem, and the bytes
        that it took.
        """
        point = self.point
        problem = self.problem
        score = ""
        if point.test is not None:
            score = f", {problem.scored_by} {point.test:.3f}"
        return (
            f"{problem.title}: residual {point.residual:.2g}{score} after {point.rounds} rounds, "
            f"{human_bytes(point.up)} up and {human_bytes(point.down)} down, all {problem.clients} "
            "clients together"
        )

    def to_json(self) -> dict[str, Any]:
        """Return what ``fedfw advise --json`` prints."""
        return {
            "method": self.method.title,
            "algorithm": self.method.algorithm,
            "options": dict(self.method.settings[self.point.setting]),
            "flags": self.flags,
            "rounds": self.point.of,
            "why": list(self.reasons),
            "measured": {
                "problem": self.problem.title,
                "bytes_up": self.point.up,
                "bytes_down": self.point.down,
                "rounds": self.point.rounds,
                "residual": self.point.residual,
                self.problem.scored_by.replace(" ", "_").lower(): self.point.test,
            },
        }


def advise(
    constraint: str,
    *,
    differ: str = "much",
    sees: str = "atoms",
    bytes_up: float | None = None,
    projection: str = "auto",
    partial: bool = False,
    residual: float | None = None,
    table: Measured | None = None,
) -> Advice:
    """Return the method that did best on the nearest measured problem, among those that may be
    used.

    Parameters
    ----------
    constraint : str
        The set, such as ``l1:10``.
    differ : {"little", "much"}
        How different the clients' data are: ``little`` for random parts of one data set or for
        writers of the same digits, ``much`` where clients have labels of their own.
    sees : {"atoms", "numbers", "sums", "gradients"}
        What the server may see of a client: atoms alone; two numbers a round too, from which step
        sizes are made; now and then the sum of all gradients too; or each client's gradients and
        models.
    bytes_up : float, optional
        What a client may send in the whole run. With it the least residual within the budget wins,
        without it the fewest bytes to ``residual``.
    projection : {"auto", "cheap", "costly"}
        Whether the server can project on the set; "auto" goes by what the set's projection costs.
    partial : bool
        Whether only some clients take part in a round.
    residual : float, optional
        How much of the way to the optimum may be left; by default 0.01. It does not go with
        ``bytes_up``.
    table : Measured, optional
        What was measured; by default the table that comes with fedfw.

    Returns
    -------
    Advice

    Examples
    --------
    >>> advice = advise("l1:10", sees="atoms")
    >>> advice.method.sees, advice.method.projects
    ('atoms', False)
    """
    for name, word, words in (
        ("differ", differ, DIFFER),
        ("sees", sees, SEES),
        ("projection", projection, PROJECTION),
    ):
        if word not in words:
            raise ValueError(f"{name}={word!r}, expected one of {', '.join(words)}")
    for name, value in (("bytes_up", bytes_up), ("residual", residual)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value}, expected a positive number")
    if bytes_up is not None and residual is not None:
        raise ValueError(
            f"bytes_up={bytes_up} with residual={residual}: within a budget the least residual "
            "wins, leave one out"
        )
    asked = parse_set(constraint)
    if projection == "auto":
        projection = "costly"
        if SETS[asked.name].projection_cost in _CHEAP_PROJECTIONS:
            projection = "cheap"
    if table is None:
        table = measured()
    problem = min(table.problems, key=lambda entry: _distance(entry, asked, differ, partial))
    allowed = [  # SEES is in ascending order of what the server sees
        method
        for method in problem.methods
        if SEES.index(method.sees) <= SEES.index(sees)
        and (projection == "cheap" or not method.projects)
    ]
    if not allowed:
        raise ValueError(
            f"no method on {problem.title} was measured that shows no more than {_SHOWS[sees]}"
        )
    without = "" if projection == "cheap" else " and need no projection"
    among = f"Among the measured methods that show no more than {_SHOWS[sees]}{without}"
    method, point, why = _best(
        allowed,
        None if bytes_up is None else bytes_up * problem.clients,  # points count all clients
        GOAL if residual is None else residual,
    )
    reasons = (
        f"{among}, {why}.",
        *_caveats(problem, asked, constraint, differ, partial, quick=table.quick),
    )
    return Advice(problem, method, point, reasons)


def _best(
    methods: list[MeasuredMethod], budget: float | None, residual: float
) -> tuple[MeasuredMethod, MeasuredPoint, str]:
    """Return the best of some methods, the point at which it is best, and the reason in words:
    within a budget (bytes up of all clients together) the least residual, otherwise the fewest
    bytes up to ``residual``; where nothing suffices, what comes nearest.
    """
    pairs = [(method, point) for method in methods for point in method.points]
    if budget is not None:
        within = [pair for pair in pairs if pair[1].up <= budget]
        if within:
            method, point = min(within, key=lambda pair: (pair[1].residual, pair[1].up))
            why = f"{method.title} has the least residual within {human_bytes(budget)} up"
        else:
            method, point = min(pairs, key=lambda pair: pair[1].up)
            why = f"none is within {human_bytes(budget)} up; {method.title} sends least"
        return method, point, why
    within = [pair for pair in pairs if pair[1].residual <= residual]
    if within:
        method, point = min(within, key=lambda pair: (pair[1].up, pair[1].residual))
        why = f"{method.title} reaches residual {residual:g} with the fewest bytes up"
    else:
        method, point = min(pairs, key=lambda pair: pair[1].residual)
        why = f"none reaches residual {residual:g}; {method.title} comes nearest"
    return method, point, why


def _distance(
    problem: MeasuredProblem, asked: ConstraintSet, differ: str, partial: bool
) -> tuple[float, ...]:
    """Return how far a measured problem is from what is asked, the most important difference
    first: the kind of set, participation, how clients differ, and the ratio of the radii.
    """
    measured_set = parse_set(problem.constraint)
    kind = int(type(measured_set) is not type(asked))
    kind += int(measured_set.is_polytope is not asked.is_polytope)
    radii = getattr(measured_set, "r", None), getattr(asked, "r", None)
    known = all(isinstance(radius, int | float) and radius > 0 for radius in radii)
    ratio = abs(math.log(radii[0] / radii[1])) if known else 0.0  # type: ignore[operator]
    return kind, problem.partial is not partial, problem.differ != differ, ratio


def _caveats(
    problem: MeasuredProblem,
    asked: ConstraintSet,
    constraint: str,
    differ: str,
    partial: bool,
    *,
    quick: bool,
) -> list[str]:
    """Return sentences that say what differs between the measured problem and what was asked."""
    measured_set = parse_set(problem.constraint)
    another = type(measured_set) is not type(asked)
    takes = "some clients take" if problem.partial else "all clients take"
    differences = (
        (
            another,
            f"No problem with a set like {constraint} was measured; {problem.constraint} stands in "
            "for it.",
        ),
        (  # l1:10 and L1:10 are the same set
            not another and repr(measured_set) != repr(asked),
            f"The measured set is {problem.constraint}, not {constraint}.",
        ),
        (
            problem.differ != differ,
            f"The clients of the measured problem differ {problem.differ}, not {differ}.",
        ),
        (problem.partial is not partial, f"In the measured problem {takes} part."),
        (
            quick,
            "The table is of small, short runs on the digits: fedfw reproduce frontier makes a "
            "real one.",
        ),
    )
    return [text for holds, text in differences if holds]
