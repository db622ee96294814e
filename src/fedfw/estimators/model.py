"""From sites, a likelihood and settings to a fitted model: what `fit`, paths and folds all call."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedfw.estimators.constraints import FREE, Geometry, geometry_of, warn_of_boxes
from fedfw.estimators.fitted import FittedModel as FittedModel
from fedfw.estimators.fitting import (
    TOLERANCES,
    Bytes,
    Certificate,
    Sees,
    fit_constrained,
    warn_of_gap,
)
from fedfw.estimators.likelihoods import Gaussian, Likelihood, total_start, total_sums
from fedfw.estimators.newton import maximum_likelihood, null_model
from fedfw.estimators.private import BOX, fit_private, public_start, refuse_exact_sums
from fedfw.estimators.problems import problem_of, restricted_problem
from fedfw.estimators.scaling import Scaling, choose_scaling
from fedfw.estimators.selection import Polished, has_faces, polish, unpolished
from fedfw.estimators.sites import Sites
from fedfw.estimators.statement import Statement
from fedfw.problems import Problem
from fedfw.sets import ConstraintSet
from fedfw.simulation import Run


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
    scales: Mapping[str, tuple[float, float]] | None = None

    @property
    def share(self) -> float:
        """Return the certified gap at which a fit ends, as a share of the null model's loss."""
        return TOLERANCES[self.sees] if self.tol is None else self.tol


def fit_model(sites: Sites, likelihood: Likelihood, settings: Settings) -> FittedModel:
    """Fit a model to the sites."""
    if not settings.statement.is_empty:
        return prepare(sites, likelihood, settings).fit(settings)
    _refuse_newton(settings)
    likelihood.validate_all(sites)
    scaling = _scaling(sites, settings)
    return _most_likely(sites.transformed(scaling.to_scaled), likelihood, scaling)


def _refuse_newton(settings: Settings) -> None:
    """Refuse settings that Newton steps, which need exact sums, cannot keep to."""
    if settings.privacy is not None:
        raise ValueError(
            "privacy= without a constraint: Newton steps need exact sums, expected a "
            'constraint such as "l1:8"'
        )
    if settings.sees != "gradients" or settings.algorithm != "auto":
        raise ValueError(
            f"sees={settings.sees!r}, algorithm={settings.algorithm!r} without a constraint: "
            "Newton steps need sums of gradients and Hessians, expected a constraint such as 'l1:8'"
        )


def _scaling(sites: Sites, settings: Settings) -> Scaling:
    """Return the scaling of the columns; levels of ordered factors keep their scale, because the
    order of coefficients is that of the original scale.
    """
    scaling = choose_scaling(
        sites,
        standardize=settings.standardize,
        scales=settings.scales,
        private=settings.privacy is not None,
    )
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


@dataclass
class Prepared:
    """The common part of constrained fits that differ in the radius alone.

    Parameters
    ----------
    sites : Sites
        Scaled columns in the order of the parameters.
    likelihood, scaling
        Of the fits.
    null_theta : Tensor
        The parameters (q,) of the null model.
    null_loss : float
        Its loss, a row; NaN for private fits, which begin at 0 and have none.
    problem : Problem
        Of ``sites``; it starts at the null model.
    names : tuple of str
        Of the columns in the order of X.
    curvature : float, optional
        That of the first fit, whose step lengths the others take.
    """

    sites: Sites
    likelihood: Likelihood
    scaling: Scaling
    null_theta: Tensor
    null_loss: float
    problem: Problem
    names: tuple[str, ...]
    curvature: float | None = None

    @property
    def rows(self) -> int:
        """Return the number of linear predictors."""
        return max(1, self.likelihood.intercepts)

    @property
    def bytes(self) -> Bytes:
        """Return what was sent before the first fit."""
        if math.isnan(self.null_loss):  # a private fit: its run alone sends something
            return Bytes()
        return Bytes.of_exchanges(self.scaling.bytes, 3, len(self.sites))

    def geometry(self, settings: Settings) -> Geometry:
        """Return the parameters and the set of a statement."""
        return geometry_of(settings.statement, self.names, self.rows, self.scaling.scale)

    def constraint(self, settings: Settings) -> ConstraintSet:
        """Return the set of the flat parameters."""
        centre = self.null_theta[self.rows * self.sites.p :]
        return _bound(self.geometry(settings), settings, self.rows, self._unit, centre)

    def fit(self, settings: Settings, start: Tensor | None = None) -> FittedModel:
        """Fit the model; ``start`` (q,), in the set, is the result of a fit with another radius.

        Parameters near the optimum need no run: where sums of gradients may be shared they are
        polished at once.
        """
        geometry = self.geometry(settings)
        constraint = self.constraint(settings)
        if settings.privacy is not None:
            return self._fit_private(settings, geometry, constraint, start)
        target = settings.share * self.null_loss
        select = partial(
            polish,
            constraint=constraint,
            geometry=geometry,
            restrict=partial(restricted_problem, self.sites, self.likelihood),
            rows=self.rows,
            target=target,
        )
        exact = settings.sees != "atoms"
        sent = self.bytes if start is None else Bytes()
        if start is not None and exact and has_faces(geometry, self.rows):
            proof = Certificate(self.problem.value(start), None, self.null_loss)
            polished = select(
                self.problem, begin=start, certificate=proof, curvature=self.curvature
            )
            sent = sent + polished.bytes
            if (polished.certificate.gap or 0.0) <= target:
                return self._model(polished, geometry, settings, sent)
            start = polished.x
        fit = fit_constrained(
            self._problem_from(start, constraint),
            constraint,
            null_loss=self.null_loss,
            algorithm=settings.algorithm,
            sees=settings.sees,
            share=settings.share,
            max_rounds=settings.max_rounds,
            seed=settings.seed,
            curvature=self.curvature,
        )
        self.curvature = fit.curvature
        sent = sent + fit.bytes
        if exact:
            x = fit.run.feasible.flatten()
            polished = select(
                self.problem, begin=x, certificate=fit.certificate, curvature=fit.curvature
            )
            sent = sent + polished.bytes
        else:
            polished = unpolished(fit, self._penalised(geometry))
        return self._model(polished, geometry, settings, sent, fit.run)

    def _fit_private(
        self,
        settings: Settings,
        geometry: Geometry,
        constraint: ConstraintSet,
        start: Tensor | None,
    ) -> FittedModel:
        """Fit the model with differential privacy."""
        if start is not None:
            raise ValueError(
                "privacy= beside several fits of the same rows, each of which spends the whole "
                "budget: expected a single fit, with a radius that is chosen beforehand"
            )
        fit = fit_private(
            self._problem_from(None, constraint),
            constraint,
            self.likelihood,
            privacy=settings.privacy,
            algorithm=settings.algorithm,
            sees=settings.sees,
            rounds=settings.max_rounds,
            seed=settings.seed,
        )
        found = unpolished(fit, self._penalised(geometry))
        return self._model(found, geometry, settings, fit.bytes, fit.run)

    def _penalised(self, geometry: Geometry) -> Tensor:
        """Return which parameters (q,) lie in the stated set."""
        return torch.arange(self.null_theta.numel()) < self.rows * geometry.penalised

    def _problem_from(self, start: Tensor | None, constraint: ConstraintSet) -> Problem:
        """Return the problem with another start in the set, without a copy of its data; the null
        model lies outside of sets such as bounds that exclude 0.
        """
        problem = copy.copy(self.problem)
        begin = self.null_theta if start is None else start
        if constraint.has_projection and not constraint.contains(begin):
            begin = constraint.project(begin)
        problem.start = begin
        return problem

    def _model(
        self,
        polished: Polished,
        geometry: Geometry,
        settings: Settings,
        sent: Bytes,
        run: Run | None = None,
    ) -> FittedModel:
        """Return the model of parameters, with warnings where it is worse than was asked for."""
        p = self.sites.p
        theta = polished.x.double()
        coef, intercept = split(theta, p, self.likelihood.intercepts)
        centre = self.null_theta[self.rows * p :]
        free = coef[:, geometry.penalised :]
        if not settings.constrain_intercept:
            warn_of_boxes(free, intercept - centre, self._unit)
        if settings.privacy is None:
            rounds = 0 if run is None else len(run.history)
            warn_of_gap(polished.certificate, settings.share, rounds)
        chosen = polished.selected[: self.rows * p].view(self.rows, p) & (coef != 0)
        original = self.scaling.to_original(geometry.coefficients(coef), intercept)
        return FittedModel(
            *original,
            selected=geometry.coefficients(chosen.double()).ne(0).any(0),
            bytes=sent,
            certificate=polished.certificate,
            parameters=theta,
            run=run,
        )

    @property
    def _unit(self) -> float:
        """Return half of the width of the boxes of free parameters."""
        if math.isnan(self.null_loss):  # a private fit, which has none
            return BOX
        if isinstance(self.likelihood, Gaussian):
            deviation: float = (2 * self.null_loss) ** 0.5  # of y
            return FREE * (deviation or 1.0)
        return FREE


def prepare(sites: Sites, likelihood: Likelihood, settings: Settings) -> Prepared:
    """Return what constrained fits share that differ in the radius alone."""
    likelihood.validate_all(sites)
    scaling = _scaling(sites, settings)
    rows = max(1, likelihood.intercepts)
    geometry = geometry_of(settings.statement, sites.names, rows, scaling.scale)
    designed = sites.transformed(lambda X: geometry.design(scaling.to_scaled(X)))
    if settings.privacy is None:
        null_theta = total_start(designed, likelihood)
        null = total_sums(designed, likelihood, null_theta)
        null_loss = null.value / null.weight
    else:
        refuse_exact_sums(sites, likelihood)
        null_theta = public_start(likelihood, sites.p)
        null_loss = math.nan
    problem = problem_of(designed, likelihood, null_theta)
    return Prepared(
        designed,
        likelihood,
        scaling,
        null_theta,
        null_loss,
        problem,
        sites.names,
    )


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
