"""From curves to fronts: what nobody beats, who holds which part of it, and what it takes to reach
a residual.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedfw.report import human_bytes

TARGETS = (0.1, 0.03, 0.01)
"""Residuals that are asked for."""
LEAST = 1e-6
"""Residuals below this are not told apart: the optimum itself is known to about 1e-5."""
_BETTER = 0.8  # a step of the front that is told of is at least this much lower than the one before
BEGUN = 0.9
"""Who holds the front is told from here on: above it hardly anything has been learnt."""
COSTS = ("up", "down", "both", "round")
"""What a point has cost: bytes up, bytes down, their sum, and rounds."""


@dataclass(frozen=True)
class Point:
    """One look at one run.

    Parameters
    ----------
    method : str
        Its title.
    setting : int
        The number of its setting.
    round, up, down : int
        What it had cost: rounds, and bytes of all clients together.
    residual : float
        (F - F*) / (F(x^1) - F*), at least 1e-6.
    test : float or None
        Test accuracy, or RMSE.
    of : int
        How many rounds to ask for: those of the whole run where its steps depend on them, else
        ``round``.
    """

    method: str
    setting: int
    round: int
    up: int
    down: int
    residual: float
    test: float | None = None
    of: int = 0

    @property
    def both(self) -> int:
        """Bytes in both directions."""
        return self.up + self.down

    def cost(self, kind: str) -> int:
        """One of `COSTS`."""
        found: int = getattr(self, kind)
        return found


def front(points: Iterable[Point], kind: str) -> list[Point]:
    """The points that nobody beats: each costs more than the one before it and has a smaller
    residual.

    Examples
    --------
    >>> a, b, c = Point("a", 0, 1, 3, 9, 0.5), Point("b", 0, 1, 5, 9, 0.6), Point("b", 0, 2, 7, 9, 0.1)
    >>> [point.up for point in front([c, b, a], "up")]
    [3, 7]
    """
    kept: list[Point] = []
    for point in sorted(points, key=lambda one: (one.cost(kind), one.residual)):
        if not kept or point.residual < kept[-1].residual:
            kept.append(point)
    return kept


def steps(points: Sequence[Point], kind: str) -> list[Point]:
    """The front without steps that are too small to matter; its last point is always there."""
    kept: list[Point] = []
    found = front(points, kind)
    for point in found:
        if not kept or point.residual <= _BETTER * kept[-1].residual:
            kept.append(point)
    if found and kept[-1].residual > found[-1].residual:
        kept.append(found[-1])
    return kept


def reached(points: Iterable[Point], target: float, kind: str) -> Point | None:
    """The cheapest point whose residual is at most the target; None where nobody got there."""
    good = [point for point in points if point.residual <= target]
    return min(good, key=lambda one: (one.cost(kind), one.residual), default=None)


def holders(points: Sequence[Point], kind: str) -> list[tuple[str, Point]]:
    """Who holds the front from `BEGUN` on, in order, each with the last point of its part."""
    found: list[tuple[str, Point]] = []
    for point in steps([one for one in points if one.residual <= BEGUN], kind):
        if found and found[-1][0] == point.method:
            found.pop()
        found.append((point.method, point))
    return found


def told(points: Sequence[Point], kind: str) -> str:
    """Who wins where, in words.

    Examples
    --------
    >>> told([Point("FedFW", 0, 1, 30, 9, 0.5), Point("FedAvg", 0, 1, 31_400, 9, 0.1)], "up")
    'FedFW to 0.5 (30 B), FedAvg to 0.1 (31.4 kB)'
    """
    shown = (
        f"{method} to {p.residual:.2g} ({_cost(p, kind)})" for method, p in holders(points, kind)
    )
    return ", ".join(shown) or "nobody"


def _cost(point: Point, kind: str) -> str:
    return f"{point.round} rounds" if kind == "round" else human_bytes(point.cost(kind))
