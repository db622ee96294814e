"""Losses of generalised linear models with a weight and an offset for each row.

A target is a row [y, weight, offset], and the linear predictor of a row is eta = output + offset.
The loss is the mean over rows of weight times

    weighted_squared    (y - eta)^2 / 2
    weighted_logistic   log(1 + exp(eta)) - y eta                  for y from 0 to 1
    weighted_poisson    exp(eta) - y eta + log(gamma(y + 1))       for y of at least 0
    weighted_softmax    log(sum_k exp(eta_k)) - eta_y              for class numbers y.

None is ever negative. The mean is over the number of rows: with weights whose mean over all
clients' rows is 1, and clients weighted by their numbers of rows, F is the weighted mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def _squared_terms(eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    residual = eta - y
    return residual.square() / 2, residual


def _logistic_terms(eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # From exp and log1p, as in `fedfw.problems.linear`: the same bits at every place of a tensor.
    small = eta.abs().neg().exp()
    losses = small.log1p() + eta.clamp(min=0) - eta * y
    return losses, torch.where(eta < 0, small, 1.0) / (1 + small) - y


def _poisson_terms(eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    rate = eta.exp()
    return rate - y * eta + torch.lgamma(y + 1), rate - y


def weighted_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the weighted mean of half the squared residuals.

    Parameters
    ----------
    outputs : Tensor
        (m, 1) or (m,).
    targets : Tensor
        (m, 3): y, weight, offset.

    Examples
    --------
    >>> import torch
    >>> weighted_squared(torch.zeros(2, 1), torch.tensor([[2.0, 1.0, 0.0], [9.0, 0.0, 0.0]])).item()
    1.0
    """
    return _mean(_squared_terms, outputs, targets)


def weighted_logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the weighted mean of the logistic loss; parameters as for `weighted_squared`."""
    return _mean(_logistic_terms, outputs, targets)


def weighted_poisson(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the weighted mean of the Poisson loss; parameters as for `weighted_squared`."""
    return _mean(_poisson_terms, outputs, targets)


def weighted_softmax(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the weighted mean of the cross-entropy of scores.

    Parameters
    ----------
    outputs : Tensor
        (m, K).
    targets : Tensor
        (m, 3): class number, weight, offset; an offset changes nothing, because it is added to the
        scores of all classes.
    """
    y, weight, _ = targets.unbind(1)
    losses = -outputs.log_softmax(1).gather(1, y.long().unsqueeze(1)).squeeze(1)
    return (weight.to(outputs.dtype) * losses).mean()


Terms = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps eta and y to each row's loss and its derivative by eta."""


def _mean(loss_terms: Terms, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over rows of the weighted losses, from outputs (m, 1) or (m,) and targets [y,
    weight, offset] (m, 3).
    """
    if outputs.shape not in ((len(targets), 1), (len(targets),)) or targets.shape[1:] != (3,):
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}, "
            "expected one output and [y, weight, offset] for each row"
        )
    y, weight, offset = targets.to(outputs.dtype).unbind(1)
    losses, _ = loss_terms(outputs.reshape(-1) + offset, y)
    return (weight * losses).mean()


def _batched(terms: Terms, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return losses (b, m) and derivatives (b, 1, m) of scores (b, 1, m) and targets (b, m, 3)."""
    y, weight, offset = targets.to(scores.dtype).unbind(2)
    losses, slopes = terms(scores.squeeze(1) + offset, y)
    return weight * losses, (weight * slopes).unsqueeze(1)


def squared_derivative(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return `weighted_squared` of each row (b, m) and its derivative (b, 1, m) by the scores
    (b, 1, m), for targets (b, m, 3).
    """
    return _batched(_squared_terms, scores, targets)


def logistic_derivative(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return `weighted_logistic` of each row (b, m) and its derivative (b, 1, m) by the scores
    (b, 1, m), for targets (b, m, 3).
    """
    return _batched(_logistic_terms, scores, targets)


def poisson_derivative(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return `weighted_poisson` of each row (b, m) and its derivative (b, 1, m) by the scores
    (b, 1, m), for targets (b, m, 3).
    """
    return _batched(_poisson_terms, scores, targets)


def softmax_derivative(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return `weighted_softmax` of each row (b, m) and its derivative (b, K, m) by scores
    (b, K, m), for targets (b, m, 3).
    """
    y, weight, _ = targets.to(scores.dtype).unbind(2)
    classes = y.long().unsqueeze(1)
    logarithms = scores.log_softmax(1)
    losses = -logarithms.gather(1, classes).squeeze(1)
    # softmax(scores) - 1 at the row's class.
    slopes = logarithms.exp().scatter_add(1, classes, -torch.ones_like(scores[:, :1]))
    return weight * losses, weight.unsqueeze(1) * slopes


class Family(NamedTuple):
    """A line of the table: the closed form, the least and the most that y may be, and the largest
    second derivative by the predictor of a row of weight 1, None where it has no bound.
    """

    derivative: Terms
    least: float
    most: float
    curvature: float | None


_INF = float("inf")
FAMILIES: dict[Callable[..., Tensor], Family] = {
    weighted_squared: Family(squared_derivative, -_INF, _INF, 1.0),
    weighted_logistic: Family(logistic_derivative, 0.0, 1.0, 0.25),
    weighted_poisson: Family(poisson_derivative, 0.0, _INF, None),
    weighted_softmax: Family(softmax_derivative, 0.0, _INF, 0.5),
}


def family_of(loss: Callable[..., Tensor]) -> Family | None:
    """Return a loss's line of the table; None for other losses."""
    return next((family for known, family in FAMILIES.items() if known is loss), None)


def glm_targets(y: Tensor, weights: Tensor | None = None, offset: Tensor | None = None) -> Tensor:
    """Return targets (m, 3) of y (m,), weights (m,), by default 1, and offsets (m,), by default 0.

    Examples
    --------
    >>> import torch
    >>> glm_targets(torch.tensor([3.0, 4.0])).tolist()
    [[3.0, 1.0, 0.0], [4.0, 1.0, 0.0]]
    """
    ones = torch.ones_like(y) if weights is None else weights
    zeros = torch.zeros_like(y) if offset is None else offset
    return torch.stack([y, ones, zeros], 1)


def validate_glm_targets(family: Family, targets: Tensor, owner: str) -> None:
    """Refuse targets (m, 3) for which the loss has no floor or is not convex."""
    if targets.ndim != 2 or targets.shape[1] != 3:
        raise ValueError(
            f"{owner}: targets of shape {tuple(targets.shape)}, expected [y, weight, offset] for "
            "each row: glm_targets puts the columns together"
        )
    y, weight, offset = targets.unbind(1)
    for name, values, least, most in (
        ("y", y, family.least, family.most),
        ("a weight", weight, 0.0, _INF),
        ("an offset", offset, -_INF, _INF),
    ):
        is_invalid = ~values.isfinite() | (values < least) | (values > most)
        if bool(is_invalid.any()):
            row = int(is_invalid.nonzero()[0])
            raise ValueError(
                f"{owner}: row {row} has {name} of {values[row].item():g}, expected a finite "
                f"number from {least:g} to {most:g}"
            )
