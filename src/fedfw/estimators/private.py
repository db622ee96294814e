"""Fits with differential privacy: what leaves a client is noised in every round, and
nothing else does.

An ordinary fit exchanges exact sums beside its run: means and deviations of the columns, totals for
the start, losses, gradients for the largest curvature, gradients for polishing. A private fit has
public numbers in their place:

==========================  =======================================================
an exact sum                in its place
==========================  =======================================================
means and deviations        ``scales=``, or columns as they are
totals of y for the start   0
the null model's loss       nothing: there is no certificate
the curvature               the largest second derivative of a row's loss, which is public
polishing                   small coefficients are not selected
the loss of the model       nothing
==========================  =======================================================

Public are the names of columns and classes, the numbers of rows, and all parameters of the fit.
"""

from __future__ import annotations

from typing import Any

import torch

from fedfw.algorithms import Algorithm, FedFW, FedPGD
from fedfw.estimators.fitting import (
    Certificate,
    Fit,
    Sees,
    bytes_of_run,
    choose_algorithm,
)
from fedfw.estimators.likelihoods import Likelihood, Logistic, Multinomial
from fedfw.estimators.sites import Sites
from fedfw.privacy import Privacy
from fedfw.problems import Problem
from fedfw.sets import ConstraintSet
from fedfw.simulation import simulate

ROUNDS = 30
"""Rounds of a private fit: each is a release, and more of them need more noise."""
BOX = 10.0
"""Half of the width of the box of free coefficients and intercepts: that of an ordinary fit is
larger, and follows from y where y is a number.
"""
NO_CERTIFICATE = Certificate(float("nan"), None, float("nan"))
"""That of a private fit, whose loss is an exact sum and stays with the clients."""


def promise_of(privacy: Any) -> Privacy:
    """Return the promise of a parameter ``privacy``: a `Privacy`, or its text."""
    if isinstance(privacy, Privacy):
        return privacy
    if isinstance(privacy, str):
        return Privacy.parse(privacy)
    raise ValueError(
        f'privacy={privacy!r}, expected a Privacy, or a text such as "eps=4,delta=1e-5"'
    )


def refuse_exact_sums(sites: Sites, likelihood: Likelihood) -> None:
    """Refuse what a private fit cannot honour without an exact sum over clients."""
    if likelihood.name == "cox":
        raise ValueError(
            "privacy= with Cox's loss, which is a function of all of a client's patients together, "
            "so no patient's share of it is bounded: expected PoissonRegression on person-periods"
        )
    if any(site.weights is not None for site in sites):
        raise ValueError(
            "sample_weight beside privacy=: the sum of all weights is an exact sum over rows, "
            "expected no weights"
        )


def fit_private(
    problem: Problem,
    constraint: ConstraintSet,
    likelihood: Likelihood,
    *,
    privacy: Any,
    algorithm: Any = "auto",
    sees: Sees = "gradients",
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Fit:
    """Return a fit of which every client sends noised messages alone.

    Parameters
    ----------
    problem
        Starts at public parameters.
    constraint
        On the flat vector of the problem's parameters.
    likelihood
        Of the fit: it says how long steps may be.
    privacy, algorithm, sees, seed
        As for `fedfw.estimators.FederatedEstimator`.
    rounds
        All of them are taken.
    """
    promise = promise_of(privacy)
    chosen = _algorithm(algorithm, sees, constraint)
    if algorithm == "auto" and chosen is FedPGD:
        # A row's curvature along a column of deviation 1. Columns that go together have more, and
        # steps that are too long for them become shorter on the way.
        lr = 1.0 / _curvature(likelihood)
        method: Algorithm = FedPGD(constraint, lr=lr, decay="linear")
    else:
        method = chosen(constraint)
    run = simulate(problem, method, rounds=rounds, seed=seed, eval_every=rounds, privacy=promise)
    return Fit(run, NO_CERTIFICATE, bytes_of_run(run))


def _algorithm(algorithm: Any, sees: Sees, constraint: ConstraintSet) -> type[Algorithm]:
    """Return the class of a private fit's algorithm."""
    if sees == "sums":
        raise ValueError(
            'sees="sums" lets clients send exact sums of gradients, which privacy= does not allow: '
            'expected sees="gradients", noised ones here, or sees="atoms"'
        )
    if algorithm == "auto":
        return FedPGD if sees == "gradients" and constraint.has_projection else FedFW
    return choose_algorithm(algorithm, sees, constraint)


def _curvature(likelihood: Likelihood) -> float:
    """Return the largest second derivative of a row's loss by its predictor; that of a Poisson row
    has no bound, and is 1 at the start.
    """
    if isinstance(likelihood, Logistic):
        return 0.25
    return 0.5 if isinstance(likelihood, Multinomial) else 1.0


def public_start(likelihood: Likelihood, p: int) -> torch.Tensor:
    """Return parameters (q,) to begin with that say nothing of the data."""
    return torch.zeros(likelihood.width(p), dtype=torch.float64)
