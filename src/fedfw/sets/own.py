"""Sets from a class with a linear minimization oracle and a diameter, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.atoms import Atom, Dense, ReadAtom
from fedfw.linalg.selection import power_of_two, row_norms
from fedfw.sets.base import ConstraintSet, Request, Shape

Array = npt.NDArray[np.float64]

MOST_CALLS = 500
"""The number of oracle calls that a membership test may take."""
_REACHED = 1e-7
"""The distance from the set, in diameters, at which a membership test ends."""
_SEARCHED = 10
"""The oracle call at which a membership test searches for a direction."""
_SEPARATED = 0.99
"""A membership test also ends when this part of the distance is proven."""


@runtime_checkable
class Oracle(Protocol):
    """The methods that a class needs to be used as a constraint set."""

    def lmo(self, g: Tensor) -> Tensor:
        """Return a point of the set with the least inner product with g, in the shape of g."""

    def diameter(self, shape: Shape) -> float:
        """Return the largest distance between two points of the set, or an upper bound on it."""


@dataclass(frozen=True, eq=False, repr=False)
class OracleSet(ConstraintSet):
    """The constraint set of an object with a linear minimization oracle and a diameter.

    Algorithms, `Product` and `fedfw.testing.check_constraint` take such an object itself and make
    this set of it.

    Parameters
    ----------
    oracle : Oracle
        An object with two methods. ``lmo(g)`` takes a finite tensor of float64 with the shape of
        the parameter, whose largest magnitude is at least 1/2 and below 1, and returns a point of
        the
        set with the least inner product with g, in the same shape. ``diameter(shape)`` returns the
        largest distance between two points of the set, or an upper bound on it. Two methods are
        optional: ``project(x)`` returns the nearest point of the set to a tensor of float64, and
        ``violation(x)`` returns how far outside x lies relative to the diameter, at most 0 inside.

    Raises
    ------
    TypeError
        If the object has no such methods.

    Notes
    -----
    An atom is sent as p numbers. Where rounding to the precision that a caller requests could move
    a point out of the set by more than 2.5e-7 of its diameter, the atom has the next wider
    precision: float32 in place of float16.

    The oracle is called for one client after the other. Without ``violation`` and ``project``,
    membership is decided by the fully corrective Frank-Wolfe method on ``||u - x||^2 / 2``: a point
    u of the set within the tolerance accepts x, and a separating direction refuses it. What
    `MOST_CALLS` oracle calls leave undecided is refused.

    A set with shorter atoms, or with oracles for whole stacks, derives from `ConstraintSet`.

    Examples
    --------
    >>> import torch, fedfw
    >>> class Disc:
    ...     def lmo(self, g):
    ...         return -3 * g / g.norm()
    ...
    ...     def diameter(self, shape):
    ...         return 6.0
    >>> disc = fedfw.OracleSet(Disc())
    >>> disc.contains(torch.tensor([[1.8, 2.4], [2.0, 2.4]]), batch=True).tolist()
    [True, False]
    """

    name: ClassVar[str] = "oracle"
    diameter_is_exact: ClassVar[bool] = False

    oracle: Any

    def __post_init__(self) -> None:
        if isinstance(self.oracle, type) or not isinstance(self.oracle, Oracle):
            raise TypeError(
                f"{self.oracle!r}, expected an object with methods lmo(g) and diameter(shape)"
            )

    def __repr__(self) -> str:
        kind: Any = type(self.oracle)
        if kind.__repr__ is object.__repr__:  # an address, which differs between processes
            return f"OracleSet({kind.__name__}({vars(self.oracle)}))"
        return f"OracleSet({self.oracle!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OracleSet) and other.oracle is self.oracle

    def __hash__(self) -> int:
        return id(self.oracle)

    @property
    def has_projection(self) -> bool:
        return hasattr(self.oracle, "project")

    def diameter(self, shape: Shape) -> float:
        found = float(self.oracle.diameter(shape))
        if not (found >= 0 and math.isfinite(found)):
            raise ValueError(f"{self!r}: diameter({shape}) is {found}, expected a finite number")
        return found

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {Dense: partial(Dense.read, shape=shape, scale=self._unit(shape))}

    def _unit(self, shape: Shape) -> float:
        """Return a power of two near the diameter, in which coordinates are sent."""
        return float(power_of_two(torch.tensor(self.diameter(shape) or 1.0, dtype=torch.float64)))

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return the points of the user's oracle for each row of g as dense atoms, in the least
        precision from the requested one on whose rounding is small beside the set.
        """
        points = torch.stack([self._vertex(row, shape) for row in g.double()])
        precision = request.precision
        for wider in (torch.float32, torch.float64):
            if precision != torch.float64 and self._frame(shape, precision).coarse:
                precision = wider
        unit = self._unit(shape)
        values = (points / unit).to(precision)
        # Rounding may move a point out of the set, and below the minimum: the bound of an atom is
        # the smaller product of g, with the exact or the rounded point.
        products = torch.stack([points, values.double() * unit]).mul_(g.double()).sum(2)
        return Dense(
            shape=shape,
            batched=True,
            precision=precision,
            bound=products.amin(0),
            values=values,
            scale=unit,
        )

    def _vertex(self, g: Tensor, shape: Shape) -> Tensor:
        """Return the oracle's point (p,), in float64, for one direction g (p,)."""
        size = g.abs().max()
        # The oracle gets a direction that cannot overflow, and is not zero: for g = 0, whose
        # product any point minimises, it gets ones.
        if size > 0:
            direction = g / power_of_two(size)
        else:
            direction = torch.ones_like(g)
        point = self.oracle.lmo(direction.reshape(shape))
        return self._checked(point, "lmo", shape)

    def _checked(self, point: object, method: str, shape: Shape) -> Tensor:
        """Return what a method of the oracle returned, flat in float64, or refuse it."""
        if not isinstance(point, Tensor) or tuple(point.shape) != shape:
            got = type(point).__name__
            if isinstance(point, Tensor):
                got = f"a tensor of shape {tuple(point.shape)}"
            raise ValueError(
                f"{self!r}: {method} returned {got}, expected a tensor of shape {shape}"
            )
        flat = point.detach().double().reshape(-1)
        if not bool(flat.isfinite().all()):
            raise ValueError(
                f"{self!r}: {method} returned NaN or infinity, expected finite numbers"
            )
        return flat

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        if not self.has_projection:
            return super()._project(x, shape)
        points = [self.oracle.project(row.reshape(shape)) for row in x]
        return torch.stack([self._checked(point, "project", shape) for point in points])

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        """Return how far each row of x is outside, relative to the set: by the user's function, by
        the projection, or by a search with the oracle alone.
        """
        if hasattr(self.oracle, "violation"):
            violations = [float(self.oracle.violation(row.reshape(shape))) for row in x]
        elif self.has_projection:
            return row_norms(x - self._project(x, shape)) / (self.diameter(shape) or 1.0)
        else:
            violations = [self._distance(row, shape) for row in x]
        return torch.tensor(violations, dtype=torch.float64, device=x.device)

    def _distance(self, x: Tensor, shape: Shape) -> float:
        """Return an upper bound on the distance of x (p,) from the set, in diameters; 0 for less
        than a tenth of the usual tolerance.

        The bound is the distance of x from the nearest point q of the convex hull of the oracle's
        points so far. Each call adds the set's farthest point in the direction x - q. The search
        ends once that direction proves most of the distance: no point of the set is farther in it
        than a part of the way to x. Where the surface is curved this converges slowly, so that one
        call searches for a direction whose farthest point is x itself.
        """
        size = self.diameter(shape) or 1.0

        def relative(direction: Tensor) -> Tensor:
            """Return the farthest point of the set in this direction, with x as the origin and the
            diameter as the unit.
            """
            return (self._vertex(-direction, shape) - x) / size

        vertices = relative(x)[None]
        nearest = vertices[0]
        for call in range(MOST_CALLS):
            distance = float(nearest.norm())
            vertex = relative(-nearest)
            if distance <= _REACHED or float(nearest @ vertex) >= _SEPARATED * distance**2:
                break
            if call != _SEARCHED:
                added = vertex
            else:
                added = _search(relative, -nearest)
            vertices, nearest = _corrected(torch.cat([vertices, added[None]]))
        if distance > _REACHED:
            return distance
        return 0.0


def _corrected(vertices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the point (p,) of the convex hull of vertices (k, p) that is nearest to 0, after the
    vertices of which it is a combination.

    Up to a factor its weights c minimise ``|sum c_i v_i|^2 + (sum c_i - 1)^2`` over c >= 0.
    """
    from scipy.optimize import nnls

    rows = vertices.cpu().numpy()
    target = np.append(np.zeros(rows.shape[1]), 1.0)
    weights, _ = nnls(np.vstack([rows.T, np.ones(len(rows))]), target)
    nearest = torch.from_numpy((weights / weights.sum()) @ rows).to(vertices)
    return vertices[torch.from_numpy(weights > 0)], nearest


def _search(relative: Callable[[Tensor], Tensor], direction: Tensor) -> Tensor:
    """Return the point nearest to 0 of those that a local search for a separating direction meets.

    It minimises ``<d, s(d)> / |d|`` over directions d, where s(d) is the vertex farthest in the
    direction d. Where the set is smooth and 0 lies on its surface, s(d) tends to 0.
    """
    from scipy.optimize import minimize

    vertices = []

    def excess(d: Array) -> tuple[float, Array]:
        """Return the slack of the direction d, <vertex, d> / ||d||, and its gradient."""
        vertex = relative(torch.from_numpy(d).to(direction))
        vertices.append(vertex)
        length = float(np.linalg.norm(d))
        value = float(vertex.cpu().numpy() @ d) / length
        return value, (vertex.cpu().numpy() - value * d / length) / length

    start = (direction / direction.norm()).cpu().numpy()
    minimize(
        excess,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxfun": 200, "gtol": 1e-10, "ftol": 0.0},
    )
    return min(vertices, key=lambda vertex: float(vertex.norm()))
