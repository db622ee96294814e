"""The table that `fedfw advise` reads: the points that win for some permission and some budget, and
no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from fedfw.advice import SEES, Measured, MeasuredMethod, MeasuredPoint, MeasuredProblem
from fedfw_reproduction.frontier.fronts import Point, steps
from fedfw_reproduction.frontier.problems import Studied


def table_of(found: Sequence[tuple[Studied, Mapping[str, list[Point]]]], quick: bool) -> Measured:
    """Return the table of these problems."""
    return Measured(tuple(winners(_problem(problem, points)) for problem, points in found), quick)


def winners(problem: MeasuredProblem) -> MeasuredProblem:
    """Return a problem with the points that no other beats under some permission.

    A permission is what the server may see and whether it can project. Under each of them, the
    fewest bytes to a residual and the least residual within a budget lie on the front of all
    methods that it allows.
    """
    kept: dict[str, set[MeasuredPoint]] = {}
    for sees, projections in product(range(len(SEES)), (False, True)):
        allowed = [
            (point.up, point.residual, order, one.title, point)
            for order, one in enumerate(problem.methods)
            if SEES.index(one.sees) <= sees and (projections or not one.projects)
            for point in one.points
        ]
        least = float("inf")
        for _, residual, _, title, point in sorted(allowed, key=lambda entry: entry[:3]):
            if residual < least:
                least = residual
                kept.setdefault(title, set()).add(point)
    methods = (_with_points(one, kept[one.title]) for one in problem.methods if one.title in kept)
    return replace(problem, methods=tuple(methods))


def _with_points(method: MeasuredMethod, kept: set[MeasuredPoint]) -> MeasuredMethod:
    """Return a method with some of its points and the settings that these have."""
    points = [point for point in method.points if point in kept]
    used = sorted({point.setting for point in points})
    renumbered = tuple(point._replace(setting=used.index(point.setting)) for point in points)
    return replace(method, settings=tuple(method.settings[i] for i in used), points=renumbered)


def _problem(problem: Studied, points: Mapping[str, list[Point]]) -> MeasuredProblem:
    """Return what was measured of one problem: every method with its own front."""
    methods = tuple(
        MeasuredMethod(
            title=one.title,
            algorithm=one.algorithm,
            sees=one.sees,
            projects=one.projects,
            settings=tuple(dict(setting) for setting in one.settings),
            points=tuple(_measured(point) for point in steps(points[one.title], "up")),
        )
        for one in problem.methods
        if points.get(one.title)
    )
    config = problem.config
    assert config.constraint is not None
    assert config.clients is not None
    return MeasuredProblem(
        title=problem.title,
        constraint=config.constraint,
        differ=problem.differ,
        clients=config.clients,
        partial=bool(config.participation != 1.0),
        scored_by=problem.scored_by,
        methods=methods,
    )


def _measured(point: Point) -> MeasuredPoint:
    return MeasuredPoint(
        up=point.up,
        down=point.down,
        rounds=point.round,
        residual=float(f"{point.residual:.3g}"),
        test=None if point.test is None else round(point.test, 4),
        setting=point.setting,
        of=point.of,
    )
