"""Which variables are selected: those in the support after a polishing step.

A fit ends near the optimum with coefficients that are small and not zero. Polishing minimises the
loss over the points that are zero where the fit is, by projected gradient steps that exchange sums
of gradients on the support alone, and so sets superfluous coefficients to zero. Then one sum of
whole gradients says whether a variable outside of the support should enter: as long as the
Frank-Wolfe gap is larger than the tolerance, the support of the oracle's answer joins, and the
support is polished again (the fully corrective Frank-Wolfe method). The last gap is the
certificate.

Where the server sees atoms alone, nothing is polished. A variable is selected then if its
coefficient is above `SMALL` of the largest one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfw.certificates import frank_wolfe_gap, validate_gap
from fedfw.errors import ContradictionError
from fedfw.estimators.constraints import Geometry
from fedfw.estimators.fitting import Bytes, Certificate, Fit
from fedfw.problems import Problem
from fedfw.rounds.projected_gradient import accelerated_steps
from fedfw.sets import ConstraintSet

SMALL = 1e-3
"""Share of the largest coefficient below which one is not selected, where nothing is polished."""
_MOST_STEPS = 400
_SMALLEST_STEP = 1e-7
"""The length of a step, relative to the point, at which polishing ends."""
_MOST_CORRECTIONS = 100
_ROUNDING = 1e-9
"""What rounding in float64 may add to a bound, relative to one and the loss."""
_DTYPE_SHARE = 1e-12
"""A gap of this share of the loss is rounding."""


Restrict = Callable[[Tensor], tuple[Problem, Tensor]]
"""From a support (k,) to the problem of its columns, and the support's places (k,) in the
parameters of that (`fedfw.estimators.problems.restricted_problem`).
"""


@dataclass(frozen=True)
class Polished:
    """The parameters (q,) of a polished fit, its proof, and the bytes of polishing."""

    x: Tensor
    selected: Tensor
    """Which parameters are in the model, (q,)."""
    certificate: Certificate
    bytes: Bytes


class _OnSupport:
    """The loss as a function of the parameters (k,) of a support, which counts exchanges."""

    def __init__(self, problem: Problem, places: Tensor) -> None:
        self._problem = problem
        self._places = places
        self.exchanges = 0
        self.payload = 0

    def value(self, z: Tensor) -> float:
        self._count(1)
        return self._problem.value(self._widen(z))

    def value_and_gradient(self, z: Tensor) -> tuple[float, Tensor]:
        self._count(1 + len(z))
        value, gradient = self._problem.value_and_gradient(self._widen(z))
        return value, gradient[self._places]

    def _widen(self, z: Tensor) -> Tensor:
        return torch.zeros_like(self._problem.start).index_copy(0, self._places, z)

    def _count(self, numbers: int) -> None:
        self.exchanges += 1
        self.payload += self._problem.n * numbers * self._problem.start.element_size()


def unpolished(fit: Fit, penalised: Tensor) -> Polished:
    """Return a fit as it is; of the penalised parameters, by the mask (q,), small ones are not
    selected.
    """
    x = fit.run.feasible.flatten()
    large = x.abs() >= SMALL * (x * penalised).abs().max()
    return Polished(x, ~penalised | large & (x != 0), fit.certificate, Bytes())


def has_faces(geometry: Geometry, rows: int) -> bool:
    """Return whether points of the stated set have supports, so that a fit can be polished."""
    penalised = torch.arange(rows * geometry.penalised)
    return geometry.stated is not None and geometry.face(penalised, rows) is not None


def polish(
    problem: Problem,
    constraint: ConstraintSet,
    geometry: Geometry,
    begin: Tensor,
    certificate: Certificate,
    restrict: Restrict,
    *,
    rows: int,
    target: float,
    curvature: float | None = None,
) -> Polished:
    """Return the polished fit; corrections go on until the gap is at most ``target``.

    Sets whose points have no support, such as balls of the l2 norm, are not polished: all variables
    are selected.

    Parameters
    ----------
    problem, constraint, geometry
        Of the fit.
    begin, certificate
        The parameters (q,) of the fit, and its proof.
    restrict
        From a support to the problem of its columns.
    rows
        The number of linear predictors.
    target
        The gap.
    curvature
        Of the problem: then all variables that a projected gradient step adds join the support at
        once, and else those of the oracle's answer.
    """
    x = begin
    sent = Bytes()
    penalised = torch.arange(len(x)) < rows * geometry.penalised
    if not has_faces(geometry, rows):
        return Polished(x, torch.ones_like(penalised), certificate, sent)
    for _ in range(_MOST_CORRECTIONS):
        before = x
        support = ((x != 0) | ~penalised).nonzero().flatten()
        x, spent = _minimise(restrict(support), constraint, geometry, x, support, rows)
        value, gradient = problem.value_and_gradient(x)
        gap = frank_wolfe_gap(constraint, x, gradient)
        validate_gap(constraint, x, gradient, gap, "polishing")
        whole = problem.n * len(x) * x.element_size()
        sent = sent + spent + Bytes.of_exchanges(whole, 1, problem.n)
        bound = value - gap
        if certificate.lower_bound is not None:
            bound = max(bound, certificate.lower_bound)
        _refuse_contradiction(value, bound)
        certificate = replace(certificate, loss=value, lower_bound=min(value, bound))
        if value - bound <= max(target, _DTYPE_SHARE * abs(value)):
            break
        atom = constraint.lmo(gradient).dense()
        x = _widened(x, gradient, atom, constraint, curvature)
        if torch.equal(x, before):  # steps are as short as they can be: no more is to be had
            break
    return Polished(x, ~penalised | (x != 0), certificate, sent)


def _refuse_contradiction(value: float, bound: float) -> None:
    """Refuse a loss below a proven lower bound by more than the rounding of both explains."""
    if bound > value + _ROUNDING * (1 + abs(value)):
        raise ContradictionError(
            f"polishing: the loss F is {value:.9g}, below {bound:.9g}, which was proven to be no more "
            "than the optimum: the losses are not convex, or the set's oracle does not find the "
            "minimum"
        )


def _widened(
    x: Tensor, gradient: Tensor, atom: Tensor, constraint: ConstraintSet, curvature: float | None
) -> Tensor:
    """Return x (q,) with a wider support: after a projected gradient step, or a small step to the
    oracle's answer; x itself if neither has another parameter.
    """
    following = [x + 1e-3 * (atom - x)]
    if curvature is not None and constraint.has_projection:
        following.insert(0, constraint.project(x - gradient / curvature))
    for point in following:
        if bool(((point != 0) & (x == 0)).any()):
            return point
    return x


def _minimise(
    restricted: tuple[Problem, Tensor],
    constraint: ConstraintSet,
    geometry: Geometry,
    x: Tensor,
    support: Tensor,
    rows: int,
) -> tuple[Tensor, Bytes]:
    """Return the minimiser over the points of the set that are zero outside of a support (k,), and
    the bytes sent for it; x itself if that is no better.
    """
    problem, places = restricted
    objective = _OnSupport(problem, places)
    project = geometry.face_projection(constraint, support, rows)
    z = x[support]
    before = objective.value(z)
    for step, following in enumerate(accelerated_steps(objective, project, z), start=1):
        length = float((following - z).norm())
        z = following
        if step == _MOST_STEPS or length <= _SMALLEST_STEP * float(z.norm()):
            break
    polished = torch.zeros_like(x).index_copy(0, support, z)
    better = objective.value(z) <= before and bool(constraint.contains(polished))
    sent = Bytes.of_exchanges(objective.payload, objective.exchanges, problem.n)
    return (polished if better else x), sent
