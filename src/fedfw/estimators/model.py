"""From sites, a likelihood and settings to a fitted model: what `fit`, paths and folds all call."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedfw.estimators.constraints import FREE, Geometry, Statement, geometry_of
from fedfw.estimators.fitting import (
    TOLERANCES,
    Bytes,
    Certificate,
    Fit,
    Sees,
    fit_constrained,
    warn_of_gap,
)
from fedfw.estimators.likelihoods import Gaussian, Likelihood, total_start, total_sums
from fedfw.estimators.newton import NewtonFit, maximum_likelihood, null_model
from fedfw.estimators.problems import problem_of
from fedfw.estimators.scaling import Scaling
from fedfw.estimators.selection import Polished, polish, unpolished
from fedfw.estimators.sites import Sites
from fedfw.problems import Problem
from fedfw.sets import ConstraintSet
from fedfw.simulation import Run

_TOUCHES = 0.99
"""Share of a box's half-width from which a free coefficient counts as held by it."""


@dataclass(frozen=True)
class Settings:
    """How a model is fitted; the estimators' parameters of the same names."""

    statement: Statement = field(default_factory=Statement)
    standardize: bool = True
    constrain_intercept: bool = False
    algorithm: Any = "auto"
    sees: Sees = "gradients"
    tol: float | None = None
    max_rounds: int = 2000
    seed: int = 0
    privacy: Any = None

    @property
    def share(self) -> float:
        """Return the certified gap at which a fit ends, as a share of the null model's loss."""
        return TOLERANCES[self.sees] if self.tol is None else self.tol


@dataclass(frozen=True)
class FittedModel:
    """A fitted model.

    Parameters
    ----------
    coef, intercept : Tensor
        On the original scale: (rows, p), and (rows,) or (0,) for a model without intercept.
    selected : Tensor
        Which variables are in the model, (p,).
    bytes : Bytes
        What all clients sent up.
    certificate : Certificate
        The loss, a lower bound on the least one, and the null model's loss, a row.
    parameters : Tensor
        The flat parameters of the fit, (q,), from which another one can begin.
    run, newton
        The federated run, or the Newton steps.
    """

    coef: Tensor
    intercept: Tensor
    selected: Tensor
    bytes: Bytes
    certificate: Certificate
    parameters: Tensor
    run: Run | None = None
    newton: NewtonFit | None = None

    @property
    def rounds(self) -> int:
        """Return the number of rounds, or of Newton steps."""
        if self.run is not None:
            return len(self.run.history)
        return self.newton.steps if self.newton is not None else 0


def fit_model(
    sites: Sites, likelihood: Likelihood, settings: Settings, start: Tensor | None = None
) -> FittedModel:
    """Fit a model to the sites; ``start`` (q,) are the parameters of a fit with another radius."""
    for site in sites:
        likelihood.validate(site)
    scaling = _scaling(sites, settings)
    scaled = sites.transformed(scaling.to_scaled)
    if settings.statement.is_empty:
        return _most_likely(scaled, likelihood, scaling)
    return _constrained(scaled, likelihood, settings, scaling, start)


def _scaling(sites: Sites, settings: Settings) -> Scaling:
    """Return the scaling of the columns; levels of ordered factors keep their scale, because the
    order of coefficients is that of the original scale.
    """
    if not settings.standardize:
        return Scaling.none(sites.p)
    if settings.privacy is not None:
        raise ValueError(
            "standardize=True sends exact sums of the columns, which privacy= does not cover: "
            "expected standardize=False, with columns brought to a common scale by public numbers"
        )
    scaling = Scaling.from_sites(sites)
    ordered = {name for levels in settings.statement.monotone.values() for name in levels}
    keep = torch.tensor([name in ordered for name in sites.names])
    return replace(scaling, scale=torch.where(keep, 1.0, scaling.scale))


def _most_likely(sites: Sites, likelihood: Likelihood, scaling: Scaling) -> FittedModel:
    """Return the maximum-likelihood fit on scaled columns."""
    newton = maximum_likelihood(sites, likelihood)
    coef, intercept = split(newton.theta, sites.p, likelihood.intercepts)
    weight = newton.sums.weight
    loss = newton.value / weight
    # Newton's decrement is how far the value was above its least, up to second order.
    bound = loss - abs(loss) * newton.decrement if newton.converged else None
    sent = Bytes.of_exchanges(scaling.bytes + newton.bytes, newton.exchanges + 2, len(sites))
    original = scaling.to_original(coef, intercept)
    return FittedModel(
        *original,
        selected=torch.ones(sites.p, dtype=torch.bool),
        bytes=sent,
        certificate=Certificate(loss, bound, null_model(sites, likelihood).value / weight),
        parameters=newton.theta,
        newton=newton,
    )


def split(theta: Tensor, p: int, intercepts: int) -> tuple[Tensor, Tensor]:
    """Return coefficients (rows, p) and intercepts (rows,) or (0,) of parameters (q,)."""
    rows = max(1, intercepts)
    return theta[: rows * p].view(rows, p), theta[rows * p :]


def _constrained(
    sites: Sites,
    likelihood: Likelihood,
    settings: Settings,
    scaling: Scaling,
    start: Tensor | None,
) -> FittedModel:
    """Return the constrained fit on scaled columns."""
    rows = max(1, likelihood.intercepts)
    geometry = geometry_of(settings.statement, sites.names, rows, scaling.scale)
    designed = sites.transformed(geometry.design)
    null_theta = total_start(designed, likelihood)
    null = total_sums(designed, likelihood, null_theta)
    null_loss = null.value / null.weight
    begin = null_theta if start is None else start
    problem = problem_of(designed, likelihood, begin)
    unit = FREE
    if isinstance(likelihood, Gaussian):
        deviation = (2 * null_loss) ** 0.5  # of y
        unit = FREE * (deviation or 1.0)
    centre = null_theta[rows * sites.p :]
    constraint = _bound(geometry, settings, rows, unit, centre)
    fit = fit_constrained(
        problem,
        constraint,
        null_loss=null_loss,
        algorithm=settings.algorithm,
        sees=settings.sees,
        share=settings.share,
        max_rounds=settings.max_rounds,
        seed=settings.seed,
        privacy=settings.privacy,
    )
    polished = _select(problem, constraint, geometry, fit, rows, settings)
    theta = polished.x.double()
    coef, intercept = split(theta, sites.p, likelihood.intercepts)
    _warn_of_boxes(coef[:, geometry.penalised :], intercept - centre, unit, settings)
    warn_of_gap(polished.certificate, settings.share, len(fit.run.history))
    chosen = polished.selected[: rows * sites.p].view(rows, sites.p) & (coef != 0)
    selected = geometry.coefficients(chosen.double()).ne(0).any(0)
    original = scaling.to_original(geometry.coefficients(coef), intercept)
    first = Bytes.of_exchanges(scaling.bytes, 3, len(sites))
    return FittedModel(
        *original,
        selected=selected,
        bytes=first + polished.bytes,
        certificate=polished.certificate,
        parameters=theta,
        run=fit.run,
    )


def _select(
    problem: Problem,
    constraint: ConstraintSet,
    geometry: Geometry,
    fit: Fit,
    rows: int,
    settings: Settings,
) -> Polished:
    """Return the fit with superfluous coefficients set to zero."""
    penalised = torch.arange(problem.start.numel()) < rows * geometry.penalised
    if settings.sees == "atoms" or settings.privacy is not None:
        return unpolished(fit, penalised)
    target = settings.share * fit.certificate.null_loss
    return polish(problem, constraint, geometry, fit, rows, target)


def _bound(
    geometry: Geometry, settings: Settings, rows: int, unit: float, centre: Tensor
) -> ConstraintSet:
    """Return the set of the flat parameters."""
    widths = torch.tensor([unit, unit], dtype=torch.float64)
    if not settings.constrain_intercept:
        return geometry.bind(rows, widths, centre)
    if settings.standardize or settings.statement.unpenalised or geometry.stated is None:
        raise ValueError(
            "constrain_intercept=True puts the intercept into the set as it is, expected "
            "standardize=False, a constraint, and no unpenalised columns"
        )
    return geometry.stated


def _warn_of_boxes(free: Tensor, intercept: Tensor, unit: float, settings: Settings) -> None:
    """Warn where a coefficient that should be free is held by its box."""
    if settings.constrain_intercept:
        return
    held = torch.cat([free.flatten(), intercept.flatten()]).abs() >= _TOUCHES * unit
    if bool(held.any()):
        warnings.warn(
            f"a free coefficient or intercept touches its box, +-{unit:.3g} on the scale of "
            "standardised columns: it is held there, as where classes are separated",
            UserWarning,
            stacklevel=4,
        )
