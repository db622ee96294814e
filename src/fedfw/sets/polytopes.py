"""Polytopes: convex hulls of given points, and sets given by linear inequalities.

The algorithms behind them are SciPy's: the HiGHS solver for linear programs, and the Lawson-Hanson
method for non-negative least squares.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.atoms import Atom, Dense, ReadAtom, Vertex
from fedfw.linalg.selection import first_argmax, power_of_two, robust_row_norms
from fedfw.linalg.singular import normalised
from fedfw.sets.base import ConstraintSet, Request, Shape
from fedfw.sets.projections import SOLVED_WITHIN

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Hull(ConstraintSet):
    """The convex hull of a given list of points.

    It suits problems whose candidate solutions can be listed, such as a library of models to be
    mixed. Its extreme points are among the given points, so an atom is the number of one of them;
    this number is all that is sent, because server and clients hold the same list.

    Parameters
    ----------
    vertices : Tensor
        The points, of shape ``(count, *shape)`` for a parameter of ``shape``; finite. Points that
        are not extreme are allowed.

    Raises
    ------
    ValueError
        If there are no points, or one has a NaN or an infinity, or the tensor has fewer than two
        axes.

    Notes
    -----
    The oracle computes ``<g, v>`` for every point v and returns the one with the smallest product:
    O(p count) operations for p entries. The projection solves a non-negative least-squares problem
    with ``count`` unknowns. The diameter is the largest distance between two of the points.

    Examples
    --------
    >>> import torch, fedfw
    >>> triangle = fedfw.Hull(torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]))
    >>> triangle.lmo(torch.tensor([-1.0, 3.0])).dense().tolist()
    [2.0, 0.0]
    >>> triangle.project(torch.tensor([2.0, 2.0])).round(decimals=4).tolist()
    [1.0, 1.0]
    """

    name: ClassVar[str] = "hull"
    is_polytope: ClassVar[bool] = True

    vertices: Tensor
    _first: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the points and flatten them to (count, p), and store for each the index of the
        first point that is equal to it.
        """
        vertices = torch.as_tensor(self.vertices).detach().double()
        if vertices.ndim < 2 or vertices.numel() == 0 or not bool(vertices.isfinite().all()):
            raise ValueError(
                f"Hull: expected finite points (count, *shape), got shape {tuple(vertices.shape)}"
            )
        vertices = vertices.flatten(1).cpu()
        object.__setattr__(self, "vertices", vertices)
        # A tie between equal points goes to the first one, even if their computed products differ
        # in the last bit.
        _, first, group = np.unique(vertices, axis=0, return_index=True, return_inverse=True)
        object.__setattr__(self, "_first", torch.from_numpy(first[group.reshape(-1)]))

    def __repr__(self) -> str:
        return f"Hull({len(self.vertices)} points)"

    @property
    def entries(self) -> int:
        return self.vertices.shape[1]

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return the first vertex of the smallest inner product with each row of g."""
        vertices = self.vertices.to(g.device)
        # Products of tiny numbers would be rounded to a few digits.
        scaled, _ = normalised(g.double().unsqueeze(1))
        index = self._first.to(g.device)[first_argmax(-(scaled.squeeze(1) @ vertices.T))]
        return Vertex(
            shape=shape, batched=True, precision=request.precision, index=index, vertices=vertices
        )

    @cached_property
    def _size(self) -> float:
        """Return the largest distance of a point from the mean of the points, or 1 if all points
        are equal.
        """
        return float(robust_row_norms(self.vertices - self.vertices.mean(0)).max()) or 1.0

    def _extent(self, shape: Shape) -> float:
        return self._size  # the diameter compares all pairs of points

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return robust_row_norms(x - self._project(x, shape)) / self._size

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        """Return the projections (n, p) of the rows of x: the point of least norm in the hull of
        ``v_i - x`` is the projection minus x.

        Up to a common factor its weights c minimise ``|sum c_i (v_i - x)|^2 + (sum c_i - 1)^2``
        over c >= 0.
        """
        from scipy.optimize import nnls

        rows = []
        for point in x.cpu().numpy():
            vertices, near = self._reduced(point)  # near has the same projection on their hull
            shifted = (vertices - near).T / self._size
            weights, _ = nnls(
                np.vstack([shifted, np.ones(len(vertices))]), np.append(np.zeros(len(point)), 1.0)
            )
            rows.append((weights / weights.sum()) @ vertices)
        return torch.from_numpy(np.stack(rows)).to(x.device)

    def _reduced(self, point: Array) -> tuple[Array, Array]:
        """Return some of the vertices, and a nearer point whose projection on their hull is that of
        ``point`` on the set.

        Least squares lose the digits of a far point. With the mean of the vertices as the origin
        and the set's size as the unit, let h be the largest product <point, v> of a vertex v. In
        the projection P only vertices with a product of at least h + <P, v - best> >= h - 2 have
        weight, and of the point only its products with their differences matter: any point with
        the same products has the same projection on their hull.
        """
        vertices = self.vertices.numpy()
        mean = vertices.mean(0)
        offset = (point - mean) / self._size
        if np.linalg.norm(offset) <= SOLVED_WITHIN:  # near enough as it is
            return vertices, point
        centred = (vertices - mean) / self._size
        products = centred @ offset
        if not np.isfinite(products).all():
            raise OverflowError(
                f"{self!r}: a point with entries up to {np.abs(point).max():.3g} is too large"
            )
        best = int(products.argmax())
        losses = products[best] - products
        rounding = 2.0**-50 * len(offset) ** 0.5 * np.linalg.norm(offset)
        relevant = losses <= 2 + rounding
        differences = centred[relevant] - centred[best]
        # The least point z with <z, v - best> = <point, v - best> for all of them.
        nearer = np.linalg.lstsq(differences, -losses[relevant], rcond=None)[0]
        return vertices[relevant], mean + self._size * nearer

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        if not isinstance(atom, Vertex) or not 0 <= int(atom.index[0]) < len(self.vertices):
            return False
        return atom.vertices is self.vertices or torch.equal(atom.vertices.cpu(), self.vertices)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {Vertex: partial(Vertex.read, shape=shape, vertices=self.vertices)}

    def diameter(self, shape: Shape) -> float:
        """Return the largest distance between two vertices, where a convex hull attains it."""
        # Squares of huge or tiny coordinates would not fit.
        size = power_of_two(self.vertices.abs().max())
        scaled = self.vertices / size
        return float(
            torch.cdist(scaled, scaled, compute_mode="donot_use_mm_for_euclid_dist").max() * size
        )

    def _norms(self, shape: Shape) -> dict[str, float]:
        """Return the largest norms over the vertices: norms are convex, so no point has a larger
        one.
        """
        magnitudes = self.vertices.abs()
        norms = {
            "l1": magnitudes.sum(1),
            "l2": self.vertices.norm(dim=1),
            "linf": magnitudes.amax(1),
        }
        if len(shape) > 1:
            sigma = torch.linalg.svdvals(self.vertices.reshape(len(self.vertices), shape[0], -1))
            norms |= {"spectral": sigma[:, 0], "nuclear": sigma.sum(1)}
        return {name: float(values.max()) for name, values in norms.items()}


@dataclass(frozen=True, eq=False)
class Polytope(ConstraintSet):
    """A polytope ``{x : A x <= b}`` given by m linear inequalities; it must be bounded and not
    empty.

    It suits constraints for which no special set exists, at moderate sizes, because A is dense and
    every call of the oracle solves a linear program. Its extreme points are its vertices; an atom
    is the vertex itself, sent as p numbers.

    Parameters
    ----------
    A : Tensor
        Coefficients, of shape (m, p) for a parameter with p entries; finite.
    b : Tensor
        Right-hand sides, of shape (m,); finite.

    Raises
    ------
    ValueError
        If the shapes do not fit, a number is not finite, or the set is empty or unbounded.

    Notes
    -----
    The oracle minimises ``<g, x>`` with the dual simplex method of HiGHS, and moves the vertex
    towards the centre just enough that rounding cannot put it outside. The projection is one
    non-negative least-squares problem. `diameter` is that of the smallest box around the set, which
    is an upper bound on the true diameter.

    Examples
    --------
    >>> import torch, fedfw
    >>> A = torch.tensor([[-1.0, 0.0], [0.0, -1.0], [1.0, 2.0]])
    >>> triangle = fedfw.Polytope(A, torch.tensor([0.0, 0.0, 4.0]))
    >>> (triangle.lmo(torch.tensor([-1.0, -1.0])).dense().round(decimals=4) + 0.0).tolist()
    [4.0, 0.0]
    >>> triangle.contains(torch.tensor([1.0, 1.0])), triangle.contains(torch.tensor([3.0, 3.0]))
    (True, False)
    """

    name: ClassVar[str] = "polytope"
    is_polytope: ClassVar[bool] = True
    diameter_is_exact: ClassVar[bool] = False

    A: Tensor
    b: Tensor

    def __post_init__(self) -> None:
        """Check A and b, drop rows of zeros, divide each row of A and b by the norm of A's row, and
        refuse a set that is empty or unbounded.
        """
        A, b = (torch.as_tensor(value).detach().double().cpu() for value in (self.A, self.b))
        if A.ndim != 2 or b.shape != A.shape[:1] or A.numel() == 0:
            raise ValueError(
                f"Polytope: A of shape {tuple(A.shape)} and b of shape {tuple(b.shape)}, expected "
                "(m, p) and (m,)"
            )
        if not bool(A.isfinite().all() & b.isfinite().all()):
            raise ValueError("Polytope: A and b must be finite")
        lengths = robust_row_norms(A)
        if bool((b[lengths == 0] < 0).any()):  # a row 0 <= b with a negative b
            raise ValueError("Polytope: {x: Ax <= b} is empty")
        nonzero = lengths > 0
        object.__setattr__(self, "A", A[nonzero] / lengths[nonzero, None])
        object.__setattr__(self, "b", b[nonzero] / lengths[nonzero])
        _validate_bounded(self.A.numpy())
        self._center  # noqa: B018  computing it raises ValueError for an empty polytope

    def __repr__(self) -> str:
        return f"Polytope({self.A.shape[0]} inequalities in {self.A.shape[1]} variables)"

    @property
    def entries(self) -> int:
        return self.A.shape[1]

    @cached_property
    def _center(self) -> Array:
        """Return the centre (p,) of the largest ball inside the polytope (the Chebyshev centre).

        A ball of centre c and radius r is inside where a_j . c + r ||a_j|| <= b_j for every row j.
        That is linear in (c, r), so the largest r is the solution of a linear program.
        """
        A = self.A.numpy()
        b = self.b.numpy()
        row_norms = np.ones((len(A), 1))  # __post_init__ divided each row of A and b by ||a_j||
        objective = np.append(np.zeros(A.shape[1]), -1.0)  # minimise -r
        bounds = [(None, None)] * A.shape[1] + [(0, None)]  # c is free, r >= 0
        center_and_radius = _solve_lp(
            objective, np.hstack([A, row_norms]), b, bounds, "Polytope: {x: Ax <= b} is empty"
        )
        return center_and_radius[:-1]

    @cached_property
    def _size(self) -> float:
        """Return the largest distance from the centre to the hyperplane of an inequality."""
        return float((self.b - self.A @ torch.from_numpy(self._center)).max())

    @cached_property
    def _box(self) -> tuple[Array, Array]:
        """Return lowest and highest value of each coordinate."""
        unit = np.eye(self.A.shape[1])
        low = np.array([self._vertex(direction) @ direction for direction in unit])
        high = np.array([self._vertex(-direction) @ direction for direction in unit])
        return low, high

    def _vertex(self, direction: Array) -> Array:
        """Return a vertex that minimises the inner product with ``direction``."""
        return _solve_lp(
            direction, self.A.numpy(), self.b.numpy(), (None, None), f"{self!r}: no solution"
        )

    def _inside_rounded(self, vertex: Array, precision: torch.dtype) -> Tensor:
        """Return the vertex in ``precision``, moved towards the centre only as far as needed to
        stay inside.
        """
        A = self.A
        b = self.b
        exact = torch.from_numpy(vertex)
        center = torch.from_numpy(self._center)
        for move in [0.0, *(2.0**-power for power in range(50, 0, -1))]:
            rounded = (exact + move * (center - exact)).to(precision)
            if bool((A @ rounded.double() <= b).all()):
                return rounded
        # Without an interior no move helps: rounding alone is the best there is.
        return exact.to(precision)

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return a solution of the linear program min <g, s> for each row of g, moved inside if
        rounding puts it outside; the bound is that of the exact vertex.
        """
        rows = []
        bound = []
        for direction in g.double().cpu().numpy():
            size = np.abs(direction).max() or 1.0
            vertex = self._vertex(direction / size)  # the tolerances of HiGHS are absolute
            rows.append(self._inside_rounded(vertex, request.precision))
            bound.append(float(vertex @ direction))
        return Dense(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=torch.tensor(bound, dtype=torch.float64, device=g.device),
            values=torch.stack(rows).to(g.device),
        )

    def _extent(self, shape: Shape) -> float:
        return self._size  # the diameter solves two linear programs for each coordinate

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        A = self.A.to(x.device)
        b = self.b.to(x.device)
        return (x @ A.T - b).amax(1) / self._size

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        """Return the projections x + z (n, p) of the rows of x by least-distance programming
        (Lawson and Hanson, 1974): the least |z| with A (x + z) <= b follows from the residual of
        one non-negative least-squares problem.
        """
        from scipy.optimize import nnls

        A = self.A.numpy()
        b = self.b.numpy()
        rows = []
        for point in x.cpu().numpy():
            excess = A @ point - b
            if (excess <= 0).all():  # inside
                rows.append(point)
                continue
            # In units of the largest excess: min |E u - f| over u >= 0 with E = [-A'; excess'] and
            # f = (0, ..., 0, 1); with the residual r = E u - f, z = -r_1..p / r_(p+1).
            scale = np.abs(excess).max()
            system = np.vstack([-A.T, excess[None] / scale])
            target = np.append(np.zeros(A.shape[1]), 1.0)
            weights, _ = nnls(system, target, maxiter=50 * len(b))
            residual = system @ weights - target
            rows.append(point - scale * residual[:-1] / residual[-1])
        return torch.from_numpy(np.stack(rows)).to(x.device)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return {Dense: partial(Dense.read, shape=shape, scale=1.0)}

    def diameter(self, shape: Shape) -> float:
        low, high = self._box
        return math.hypot(*(high - low))

    def _norms(self, shape: Shape) -> dict[str, float]:
        """Return upper bounds on the norms: those of the smallest box around the polytope."""
        low, high = self._box
        largest = np.maximum(np.abs(low), np.abs(high))
        return {
            "l1": float(largest.sum()),
            "l2": math.hypot(*largest),
            "linf": float(largest.max()),
        }


def _validate_bounded(A: Array) -> None:
    """Raise ValueError if {x : Ax <= b} is unbounded.

    By Stiemke's lemma it is bounded if and only if A has full column rank and A'c = 0 for some c >=
    1.
    """
    message = "Polytope: {x: Ax <= b} is unbounded"
    if np.linalg.matrix_rank(A) < A.shape[1]:
        raise ValueError(message)
    _solve_lp(np.zeros(len(A)), None, None, (1, None), message, equal=(A.T, np.zeros(A.shape[1])))


def _solve_lp(
    objective: Array,
    A: Array | None,
    b: Array | None,
    bounds: object,
    failure: str,
    equal: tuple[Array, Array] | tuple[None, None] = (None, None),
) -> Array:
    """Return the minimiser x of ``objective . x`` with A x <= b, E x = e for ``equal = (E, e)``,
    and x within ``bounds``; raise ValueError with the text ``failure`` if there is none.

    With ``b``, which is scaled, the ``bounds`` must be 0 or none.
    """
    from scipy.optimize import linprog

    # The tolerances of HiGHS are absolute, and what is above 1e20 is infinite for it. A power of
    # two scales b without rounding.
    unit = 1.0
    if b is not None and b.any():
        unit = 2.0 ** (math.frexp(float(np.abs(b).max()))[1] - 1)
    result = linprog(
        objective, A_ub=A, b_ub=None if b is None else b / unit, A_eq=equal[0], b_eq=equal[1],
        bounds=bounds, method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )  # fmt: skip
    if result.status != 0:  # infeasible, unbounded, or a failure
        raise ValueError(failure)
    return unit * np.asarray(result.x, dtype=np.float64)
