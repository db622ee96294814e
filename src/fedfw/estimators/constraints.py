"""A user's statement about coefficients as a constraint set of fedfw.

The parameters of a model are one vector: the penalised coefficients, the free ones, the intercepts.
The set is a product over these three parts:

- the penalised coefficients lie in the stated set,
- free coefficients and the intercept lie in a large box, because Frank-Wolfe steps and their
  bounds need a bounded set. `fedfw.estimators.fitting` warns where a solution touches it.

Statements about the order of coefficients are changes of variables. With the levels' coefficients
0 <= b_1 <= b_2 <= b_3 and increments d_1 = b_1, d_2 = b_2 - b_1, d_3 = b_3 - b_2, the columns of
the increments are sums of the levels' columns, and the statement is d >= 0.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedfw.estimators.statement import Statement
from fedfw.sets import (
    Box,
    CappedSimplex,
    ConstraintSet,
    GroupBall,
    L1Ball,
    OracleSet,
    Product,
)
from fedfw.sets.registry import as_set

FREE = 30.0
"""Half of the width of a box that stands for no bound, on the scale of standardised columns."""
_TOUCHES = 0.99
"""Share of a box's half-width from which a free coefficient counts as held by it."""


@dataclass(frozen=True)
class SignedL1Ball:
    """{b: sum |b_j| <= r, low_j b_j >= 0}: an l1 ball whose coefficients may have signs.

    ``signs`` (p,) is 1 where a coefficient is at least 0, -1 where it is at most 0, and 0 where it
    is free.
    """

    r: float
    signs: Tensor

    def _allowed(self, x: Tensor) -> Tensor:
        """Return x with entries of a forbidden sign set to 0: the nearest point of the cone."""
        signs = self.signs.reshape(x.shape).to(x)
        return torch.where(signs * x < 0, 0.0, x)

    def lmo(self, g: Tensor) -> Tensor:
        """Return the vertex with the least product with g."""
        downhill = self._allowed(-g)
        best = int(downhill.abs().argmax())
        vertex = torch.zeros_like(g)
        vertex.view(-1)[best] = self.r * downhill.view(-1)[best].sign()
        return vertex

    def project(self, x: Tensor) -> Tensor:
        """Return the nearest point: the cone is coordinatewise, so the ball's projection of the
        nearest point of the cone is it.
        """
        return L1Ball(self.r).project(self._allowed(x).reshape(-1)).reshape(x.shape)

    def violation(self, x: Tensor) -> float:
        """Return how far outside x lies, relative to the radius."""
        wrong = (x - self._allowed(x)).abs().max()
        return max(float(wrong), float(x.abs().sum()) - self.r) / self.r

    def diameter(self, shape: tuple[int, ...]) -> float:
        """Return an upper bound on the largest distance of two points."""
        return 2 * self.r


@dataclass(frozen=True)
class Geometry:
    """The parameters that are fitted, and how coefficients follow from them.

    Parameters
    ----------
    order : Tensor
        The columns in the order of the parameters, (p,): penalised ones first.
    increments : Tensor or None
        T (p, p) with coefficients = T parameters, for ordered levels, in the columns' order.
    penalised : int
        How many coefficients lie in the stated set.
    stated : ConstraintSet or None
        That set; None if there are no penalised coefficients.
    """

    order: Tensor
    increments: Tensor | None
    penalised: int
    stated: ConstraintSet | None

    def design(self, X: Tensor) -> Tensor:
        """Return the columns of the parameters (m, p) from scaled columns X (m, p)."""
        columns = X if self.increments is None else X @ self.increments
        return columns[:, self.order]

    def coefficients(self, parameters: Tensor) -> Tensor:
        """Return coefficients (..., p) of scaled columns from parameters (..., p)."""
        in_place = torch.empty_like(parameters)
        in_place[..., self.order] = parameters
        return in_place if self.increments is None else in_place @ self.increments.T

    def parameters(self, coefficients: Tensor) -> Tensor:
        """Return the parameters (..., p) of coefficients (..., p): the inverse."""
        if self.increments is not None:
            coefficients = torch.linalg.solve(self.increments, coefficients.mT).mT
        return coefficients[..., self.order]

    def bind(self, rows: int, box: Tensor, centre: Tensor) -> ConstraintSet:
        """Return the set of the flat parameters of ``rows`` linear predictors.

        Parameters
        ----------
        rows
            1, or the number of classes of a multinomial model.
        box
            Half of the width of the box of free coefficients, and of intercepts: (2,).
        centre
            The centres of the intercepts' box, (rows,), or (0,) for a model without intercept.
        """
        free = len(self.order) - self.penalised
        sets: dict[str, Any] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        if self.stated is not None:
            sets["coef"] = self.stated
            shapes["coef"] = (rows, self.penalised)
        if free:
            sets["free"] = Box(-float(box[0]), float(box[0]))
            shapes["free"] = (free,)
        if len(centre) == 1 and not bool(centre.any()):
            # The same interval, as a set whose vertices a private fit can choose among.
            sets["intercept"] = L1Ball(float(box[1]))
            shapes["intercept"] = (rows,)
        elif len(centre):
            sets["intercept"] = Box(centre - box[1], centre + box[1])
            shapes["intercept"] = (rows,)
        return Product(sets).bind(shapes)

    def face(self, support: Tensor, rows: int) -> ConstraintSet | None:
        """Return the points of the stated set that are zero outside of a support (k,) of its flat
        coefficients, as a set of vectors (k,); None for sets whose points have no support.
        """
        if self.stated is None:
            return None
        oracle = getattr(self.stated, "oracle", None)
        if isinstance(oracle, SignedL1Ball):
            return OracleSet(SignedL1Ball(oracle.r, oracle.signs[support]))
        return self.stated._face(support, (rows, self.penalised))

    def face_projection(
        self, constraint: ConstraintSet, support: Tensor, rows: int
    ) -> Callable[[Tensor], Tensor]:
        """Return the projection of flat parameters (k,) of a support to the points of the set of
        all parameters that are zero outside of it.
        """
        stated = rows * self.penalised
        ours = support < stated
        face = self.face(support[ours], rows)
        zeros = torch.zeros(constraint.entries or len(support), dtype=torch.float64)

        def project(z: Tensor) -> Tensor:
            whole = zeros.to(z).index_copy(0, support, z)
            projected = constraint.project(whole)[support]  # the boxes of the free parameters
            if face is not None and bool(ours.any()):
                projected[ours] = face.project(z[ours])
            return projected

        return project


def geometry_of(statement: Statement, names: Sequence[str], rows: int, scale: Tensor) -> Geometry:
    """Return the parameters and the set of a statement about the columns ``names``.

    ``rows`` is 1, or the number of classes of a multinomial model. ``scale`` (p,) are the scales of
    the columns: a bound on b is the bound times the scale on the scaled column's coefficient.
    """
    statement.validate_names(names)
    place = {name: j for j, name in enumerate(names)}
    if rows > 1 and (statement.bounds or statement.unpenalised or statement.monotone):
        raise ValueError(
            "bounds, unpenalised and monotone are statements about one coefficient a column, "
            f"expected a model with two classes, got {rows}: fit one class against the rest"
        )
    free = [place[name] for name in statement.unpenalised]
    penalised = [j for j in range(len(names)) if j not in set(free)]
    signs = torch.zeros(len(names))
    increments = None
    if statement.monotone:
        increments = torch.eye(len(names), dtype=torch.float64)
        for levels in statement.monotone.values():
            columns = [place[name] for name in levels]
            for i, column in enumerate(columns):
                increments[columns[i:], column] = 1.0
                signs[column] = 1.0
    low = torch.full((len(names),), -math.inf, dtype=torch.float64)
    high = torch.full((len(names),), math.inf, dtype=torch.float64)
    for name, (least, most) in statement.bounds.items():
        low[place[name]] = -math.inf if least is None else least
        high[place[name]] = math.inf if most is None else most
    low[signs > 0] = 0.0
    if bool((low > high).any()):
        worst = names[int((low > high).nonzero()[0])]
        raise ValueError(f"bounds of {worst!r} are {statement.bounds[worst]}, expected low <= high")
    low = low * scale
    high = high * scale
    order = torch.tensor([*penalised, *free], dtype=torch.long)
    stated = None
    if penalised:
        wanted = torch.tensor(penalised)
        stated = _stated(statement, low[wanted], high[wanted], [names[j] for j in penalised])
    return Geometry(order, increments, len(penalised), stated)


def _stated(statement: Statement, low: Tensor, high: Tensor, names: Sequence[str]) -> ConstraintSet:
    """Return the set of the penalised coefficients with bounds ``low`` and ``high`` (k,)."""
    bounded = bool((low.isfinite() | high.isfinite()).any())
    if statement.constraint is None:
        if statement.factors:
            raise ValueError(
                "factors say which variables enter together, expected a set with a radius beside "
                'them: constraint="l1:8", for example'
            )
        beyond = (low.clamp(min=-FREE) > high.clamp(max=FREE)).nonzero().flatten().tolist()
        if beyond:
            raise ValueError(
                f"bounds of {names[beyond[0]]!r} lie beyond the box of +-{FREE:g} on the scale of "
                "standardised columns, expected bounds within it"
            )
        return Box(low.clamp(min=-FREE), high.clamp(max=FREE))
    ball: Any = as_set(statement.constraint)
    if statement.factors:
        return _grouped(ball, statement, names, bounded)
    if not bounded:
        return ball  # type: ignore[no-any-return]
    return _signed(ball, low, high)


def _grouped(ball: Any, statement: Statement, names: Sequence[str], bounded: bool) -> ConstraintSet:
    """Return the ball of the sum of the factors' l2 norms; other columns are factors alone."""
    if not isinstance(ball, L1Ball) or bounded:
        raise ValueError(
            f"factors={dict(statement.factors)!r} beside {ball!r}"
            + (" and bounds" if bounded else "")
            + ', expected an l1 ball, such as "l1:8", and no bounds'
        )
    group_of = {name: factor for factor, levels in statement.factors.items() for name in levels}
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(group_of.get(name, f" {name}"), len(numbers)) for name in names]
    return GroupBall(ball.r, groups=torch.tensor(groups))


def _signed(ball: Any, low: Tensor, high: Tensor) -> ConstraintSet:
    """Return an l1 ball with signs; other sets have no bounds beside them."""
    if not isinstance(ball, L1Ball):
        raise ValueError(
            f"bounds beside {ball!r}, expected an l1 ball or no set: the intersection of other "
            "sets with bounds has no oracle here"
        )
    allowed = (low == 0) & high.isinf() | (high == 0) & low.isinf() | low.isinf() & high.isinf()
    if not bool(allowed.all()):
        raise ValueError(
            f"bounds beside {ball!r} are signs alone: expected (0, None) or (None, 0); for other "
            "bounds leave the ball out"
        )
    signs = (low == 0).double() - (high == 0).double()
    if bool((signs > 0).all()):
        return CappedSimplex(ball.r)
    return OracleSet(SignedL1Ball(ball.r, signs))


def warn_of_boxes(free: Tensor, intercept: Tensor, unit: float) -> None:
    """Warn where a coefficient that should be free, or an intercept, is held by its box."""
    held = torch.cat([free.flatten(), intercept.flatten()]).abs() >= _TOUCHES * unit
    if bool(held.any()):
        warnings.warn(
            f"a free coefficient or intercept touches its box, +-{unit:.3g} on the scale of "
            "standardised columns: it is held there, as where classes are separated",
            UserWarning,
            stacklevel=5,
        )
