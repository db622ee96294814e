"""The federated problem of a likelihood: one linear layer with the mean loss of all rows.

F = (1 / W) sum over rows of weight * loss, with W the sum of all weights. Clients count by their
numbers of rows, so that F is the loss of the pooled rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.estimators.likelihoods import Gaussian, Likelihood, Logistic, Multinomial, Poisson
from fedfw.estimators.partial_likelihood import Cox
from fedfw.estimators.sites import Site, Sites
from fedfw.problems import Problem, cox_loss
from fedfw.problems.glm import (
    glm_targets,
    weighted_logistic,
    weighted_poisson,
    weighted_softmax,
    weighted_squared,
)

Loss = Callable[[Tensor, Tensor], Tensor]
_LOSSES: dict[type[Likelihood], Loss] = {
    Gaussian: weighted_squared,
    Logistic: weighted_logistic,
    Poisson: weighted_poisson,
    Multinomial: weighted_softmax,
}


def problem_of(sites: Sites, likelihood: Likelihood, start: Tensor) -> Problem:
    """Return the problem of the sites' rows, whose runs begin at ``start`` (q,).

    Parameters are the coefficients row by row, then the intercepts, as in `Likelihood`.
    """
    rows = max(1, likelihood.intercepts)
    model = nn.Linear(sites.p, rows, bias=likelihood.intercepts > 0, dtype=torch.float64)
    nn.utils.vector_to_parameters(start, model.parameters())
    loss, targets = _loss_and_targets(sites, likelihood)
    clients = [(site.X, targets(site)) for site in map(_blanked, sites)]
    shares = [len(site) / sites.n for site in sites]
    return Problem(model, loss, clients, weights=shares, convex=True)


def _blanked(site: Site) -> Site:
    """Return the site with zeros in rows of weight 0, whose losses could overflow: 0 times infinity
    is NaN.
    """
    if site.weights is None or bool((site.weights > 0).all()):
        return site
    counts = site.weights > 0
    offset = None if site.offset is None else torch.where(counts, site.offset, 0.0)
    X = torch.where(counts[:, None], site.X, 0.0)
    return replace(site, X=X, y=torch.where(counts, site.y, 0.0), offset=offset)


def restricted_problem(
    sites: Sites, likelihood: Likelihood, support: Tensor
) -> tuple[Problem, Tensor]:
    """Return the problem of the columns that a support (k,) of the flat parameters needs, and the
    places (k,) of the support in its parameters.

    At points that are zero outside of the support, losses and the support's gradients are those of
    the whole problem, for the cost of a few columns.
    """
    rows = max(1, likelihood.intercepts)
    p = sites.p
    coefficients = support < rows * p
    columns = torch.unique(support[coefficients] % p)
    if not len(columns):
        columns = torch.zeros(1, dtype=torch.long)
    k = len(columns)
    row = support.div(p, rounding_mode="floor")
    in_row = torch.searchsorted(columns, support % p)
    places = torch.where(coefficients, row * k + in_row, support - rows * (p - k))
    names = tuple(sites.names[j] for j in columns.tolist())
    narrow = replace(sites.transformed(lambda X: X[:, columns]), names=names)
    start = torch.zeros(likelihood.width(k), dtype=torch.float64)
    return problem_of(narrow, likelihood, start), places


def _loss_and_targets(
    sites: Sites, likelihood: Likelihood
) -> tuple[Loss, Callable[[Site], Tensor]]:
    """Return the loss of a client's rows, and what makes its targets of a site."""
    scale = sites.n / sites.weight
    if isinstance(likelihood, Cox):
        return _cox(likelihood), lambda site: site.y
    unweighted = all(site.weights is None for site in sites)
    if isinstance(likelihood, Multinomial) and unweighted:
        return nnf.cross_entropy, lambda site: site.y.long()
    loss = _LOSSES[type(likelihood)]
    return loss, lambda site: glm_targets(site.y, site.row_weights * scale, site.offset)


def _cox(likelihood: Cox) -> Any:
    """Return Cox's loss with the likelihood's ties."""
    return cox_loss if likelihood.ties == "breslow" else partial(cox_loss, ties=likelihood.ties)
