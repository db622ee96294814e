"""Inference that is honest about selection.

A fit without a constraint has Wald intervals. After a selection on the same rows they would be far
too short, so they are refused. With ``infer="split"`` variables are selected on one half of each
client's rows, and their coefficients are estimated, without a constraint, on the other half. The
intervals are those of the selected submodel's coefficients in the population, whatever else is true
of it, so standard errors are the sandwich's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedfw.estimators.inference import refuse_without_maximum, wald
from fedfw.estimators.likelihoods import Likelihood, total_sums
from fedfw.estimators.model import FittedModel
from fedfw.estimators.newton import maximum_likelihood
from fedfw.estimators.sites import Sites


def halves(sites: Sites, seed: int) -> tuple[Sites, Sites]:
    """Return two halves of each client's rows, drawn from the seed."""
    generator = torch.Generator().manual_seed(seed)
    first = []
    second = []
    for site in sites:
        if len(site) < 2:
            raise ValueError(
                f'{site.name} has {len(site)} row, infer="split" needs two or more at every client'
            )
        order = torch.randperm(len(site), generator=generator)
        middle = (len(site) + 1) // 2
        first.append(site.rows(order[:middle].sort().values))
        second.append(site.rows(order[middle:].sort().values))
    return replace(sites, sites=tuple(first)), replace(sites, sites=tuple(second))


def infer(
    model: FittedModel,
    sites: Sites,
    held_out: Sites | None,
    likelihood: Likelihood,
    sandwich: bool,
) -> Any:
    """Return the table of a model's coefficients, or the reason why there is none.

    Parameters
    ----------
    model
        Fitted to ``sites``.
    sites
        The rows of the fit, with columns on the original scale.
    held_out
        Rows that the selection has not seen; None where nothing was held out.
    likelihood
        Of the model.
    sandwich
        Whether standard errors are robust; they are with ``held_out``.
    """
    if model.run is not None and model.run.privacy is not None:
        return (
            "no inference: intervals that ignore the noise of privacy= would be too short; use "
            "the fit for prediction"
        )
    if held_out is None and model.newton is None:
        return (
            "no inference: intervals after a selection on the same rows would be too short. Use "
            'infer="split", which selects on one half of each client and infers on the other'
        )
    try:
        if held_out is None:
            assert model.newton is not None
            refuse_without_maximum(model.newton)
            return _table(sites, likelihood, _parameters(model), sandwich)
        chosen = model.selected.nonzero().flatten()
        if not len(chosen):
            return "no inference: no variable was selected"
        kept = replace(
            held_out.transformed(lambda X: X[:, chosen]),
            names=tuple(held_out.names[j] for j in chosen.tolist()),
        )
        return _table(kept, likelihood, None, sandwich=True)
    except ValueError as error:  # collinear columns, no maximum: the fit itself is valid
        return str(error)


def _parameters(model: FittedModel) -> Tensor:
    """Return the parameters (q,) of a model on the original scale."""
    return torch.cat([model.coef.flatten(), model.intercept])


def _table(sites: Sites, likelihood: Likelihood, start: Tensor | None, sandwich: bool) -> Any:
    """Return the table of the maximum-likelihood fit on columns of the original scale."""
    fit = maximum_likelihood(sites, likelihood, start)
    sums = total_sums(sites, likelihood, fit.theta, hessian=True, outer=sandwich)
    return wald(fit, sums, sandwich=sandwich)
