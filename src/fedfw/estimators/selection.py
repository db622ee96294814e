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

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfw.estimators.constraints import Geometry
from fedfw.estimators.fitting import Bytes, Certificate, Fit
from fedfw.problems import Problem
from fedfw.rounds.projected_gradient import accelerated_steps
from fedfw.sets import ConstraintSet

SMALL = 1e-3
"""Share of the largest coefficient below which one is not selected, where nothing is polished."""
_MOST_STEPS = 400
_SMALLEST_STEP = 1e-9
"""The length of a step, relative to the point, at which polishing ends."""
_MOST_CORRECTIONS = 100
_DTYPE_SHARE = 1e-12
"""A gap of this share of the loss is rounding."""


@dataclass(frozen=True)
class Polished:
    """The parameters (q,) of a polished fit, its proof, and the bytes of everything."""

    x: Tensor
    selected: Tensor
    """Which parameters are in the model, (q,)."""
    certificate: Certificate
    bytes: Bytes


class _OnSupport:
    """The loss as a function of the parameters (k,) of a support, which counts exchanges."""

    def __init__(self, problem: Problem, support: Tensor) -> None:
        self.support = support
        self._problem = problem
        self.exchanges = 0
        self.payload = 0

    def widen(self, z: Tensor) -> Tensor:
        """Return z (k,) as parameters (q,)."""
        return torch.zeros_like(self._problem.start).index_copy(0, self.support, z)

    def value(self, z: Tensor) -> float:
        self._count(1)
        return self._problem.value(self.widen(z))

    def value_and_gradient(self, z: Tensor) -> tuple[float, Tensor]:
        self._count(1 + len(z))
        value, gradient = self._problem.value_and_gradient(self.widen(z))
        return value, gradient[self.support]

    def _count(self, numbers: int) -> None:
        self.exchanges += 1
        self.payload += self._problem.n * numbers * self._problem.start.element_size()


def unpolished(fit: Fit, penalised: Tensor) -> Polished:
    """Return a fit as it is; of the penalised parameters, by the mask (q,), small ones are not
    selected.
    """
    x = fit.run.feasible.flatten()
    large = x.abs() >= SMALL * (x * penalised).abs().max()
    return Polished(x, ~penalised | large & (x != 0), fit.certificate, fit.bytes)


def polish(
    problem: Problem,
    constraint: ConstraintSet,
    geometry: Geometry,
    fit: Fit,
    rows: int,
    target: float,
) -> Polished:
    """Return the polished fit; corrections go on until the gap is at most ``target``.

    ``rows`` is the number of linear predictors. Sets whose points have no support, such as balls of
    the l2 norm, are not polished: all variables are selected.
    """
    x = fit.run.feasible.flatten()
    sent = fit.bytes
    certificate = fit.certificate
    penalised = torch.arange(len(x)) < rows * geometry.penalised
    if geometry.stated is None or geometry.face(penalised.nonzero().flatten(), rows) is None:
        return Polished(x, torch.ones_like(penalised), certificate, sent)
    for _ in range(_MOST_CORRECTIONS):
        support = ((x != 0) | ~penalised).nonzero().flatten()
        x, spent = _minimise(problem, constraint, geometry, x, support, rows)
        value, gradient = problem.value_and_gradient(x)
        atom = constraint.lmo(gradient).dense()
        gap = float(((x - atom) * gradient).sum())
        whole = problem.n * len(x) * x.element_size()
        sent = sent + spent + Bytes.of_exchanges(whole, 1, problem.n)
        bound = min(value, max(value - gap, fit.certificate.lower_bound or value - gap))
        certificate = replace(certificate, loss=value, lower_bound=bound)
        if value - bound <= max(target, _DTYPE_SHARE * abs(value)):
            break
        x = x + 1e-3 * (atom - x)  # the oracle's answer joins the support
    return Polished(x, ~penalised | (x != 0), certificate, sent)


def _minimise(
    problem: Problem,
    constraint: ConstraintSet,
    geometry: Geometry,
    x: Tensor,
    support: Tensor,
    rows: int,
) -> tuple[Tensor, Bytes]:
    """Return the minimiser over the points of the set that are zero outside of a support (k,), and
    the bytes sent for it; x itself if that is no better.
    """
    objective = _OnSupport(problem, support)
    project = geometry.face_projection(constraint, support, rows)
    z = x[support]
    before = problem.value(x)
    for step, following in enumerate(accelerated_steps(objective, project, z), start=1):
        length = float((following - z).norm())
        z = following
        if step == _MOST_STEPS or length <= _SMALLEST_STEP * float(z.norm()):
            break
    sent = Bytes.of_exchanges(objective.payload, objective.exchanges, problem.n)
    polished = objective.widen(z)
    better = problem.value(polished) <= before and bool(constraint.contains(polished))
    return (polished if better else x), sent
