"""Gradients of single samples, and how they are cut down: what one sample can add is bounded, and
no sample ends a private run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LOST_SQUARE = 2.0**-1074
"""A square of a number in float64 is smaller than the exact one by at most this much where it
underflows.
"""


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """Return what to multiply vectors of these norms by so that none is longer than ``clip``, in
    float64.

    The factor is exactly 1 for norms up to ``clip``. It is 0 where a norm is not finite, because a
    private run must not reveal a sample by failing. A clipped vector is longer than ``clip`` by
    rounding alone, which `fedfw.privacy.rounding` adds to the sensitivity.

    Examples
    --------
    >>> import torch
    >>> clip_factors(torch.tensor([0.0, 0.5, 1.0, 4.0, torch.inf, torch.nan]), 1.0).tolist()
    [1.0, 1.0, 1.0, 0.25, 0.0, 0.0]
    """
    norms = norms.double()
    factors = torch.where(norms <= clip, 1.0, clip / norms)
    return torch.where(norms.isfinite(), factors, 0.0)


_RAISED = (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError)


def gradients_of_samples(
    gradient_and_loss: Callable[..., tuple[Tensor, Tensor]],
    x: Tensor,
    inputs: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return gradients (b, m, p) and losses (b, m) of m samples; NaN for one that raises an error.

    Some losses refuse a NaN (`BCELoss`), and a server chooses points at which one sample has it. A
    private run must not end by that. The other samples are evaluated in a stack of the same shape,
    so that their gradients have the same bits with and without that sample.
    """
    try:
        return gradient_and_loss(x, inputs, targets)
    except _RAISED:
        # One client at a time: another client's samples do not matter.
        if len(x) > 1:
            rows = [
                gradients_of_samples(gradient_and_loss, x[[i]], inputs[[i]], targets[[i]])
                for i in range(len(x))
            ]
            return torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows])
    samples = range(inputs.shape[1])
    raises = torch.tensor(
        [_raises(gradient_and_loss, x, inputs[:, [j]], targets[:, [j]]) for j in samples]
    )
    raises = raises.to(x.device)
    if bool(raises.all()):
        # An error that has nothing to do with data is raised here, too.
        gradient_and_loss(torch.zeros_like(x), torch.zeros_like(inputs), torch.zeros_like(targets))
        return x.new_zeros(1, len(samples), x.shape[1]), x.new_full((1, len(samples)), torch.nan)
    places = torch.arange(len(samples), device=x.device)
    # Samples that raise are replaced by the first that does not; their losses become NaN, so that
    # the caller leaves them out.
    stand_ins = torch.where(raises, places[~raises][0], places)
    gradients, losses = gradient_and_loss(x, inputs[:, stand_ins], targets[:, stand_ins])
    return gradients, losses.masked_fill(raises, torch.nan)


def _raises(each: Callable[..., Any], *arguments: Tensor) -> bool:
    """Return whether a function raises an error."""
    try:
        each(*arguments)
    except _RAISED:
        return True
    return False


def norms_of_samples(gradients: Tensor, norm: str) -> Tensor:
    """Return the norms (b, m), linf or l2, of vectors (b, m, p) in float64."""
    if norm != "l2":
        return gradients.abs().amax(2)
    squares: Tensor = torch.linalg.vector_norm(gradients, dim=2).square()
    # What squares lose by underflow is added, so that no norm is too small.
    return (squares + gradients.shape[2] * LOST_SQUARE).sqrt()
