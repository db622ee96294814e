"""The table that `fedfw advise` reads: for each problem and method the points of its front that matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedfw.advice import Measured, MeasuredMethod, MeasuredPoint, MeasuredProblem
from fedfw_reproduction.frontier.fronts import Point, steps
from fedfw_reproduction.frontier.problems import Studied
from fedfw_reproduction.lab import Json


def table_of(found: Sequence[tuple[Studied, Mapping[str, list[Point]]]], quick: bool) -> Json:
    """The table of these problems, in a form that JSON can hold."""
    return Measured(tuple(_problem(problem, points) for problem, points in found), quick).to_json()


def _problem(problem: Studied, points: Mapping[str, list[Point]]) -> MeasuredProblem:
    c = problem.config
    methods = tuple(
        MeasuredMethod(
            one.title,
            one.algorithm,
            one.sees,
            one.projects,
            tuple(dict(setting) for setting in one.settings),
            tuple(
                MeasuredPoint(p.up, p.down, p.round, float(f"{p.residual:.3g}"), p.test, p.setting, p.of)
                for p in steps(points[one.title], "up")
            ),
        )
        for one in problem.methods
        if points.get(one.title)
    )
    assert c.constraint is not None
    partial = bool(c.participation != 1.0)
    return MeasuredProblem(problem.title, c.constraint, problem.differ, c.clients, partial, problem.scored_by, methods)
