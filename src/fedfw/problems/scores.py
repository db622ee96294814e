"""Losses of a linear layer's scores with their derivatives in closed form, and which models and
losses have one.

Scores are kept with the samples along the last axis, because there are many samples and few
outputs: products and exponentials of long rows are up to twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.problems.known_losses import KnownLoss, is_changed

Derivative = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps scores (b, c, m) and targets (b, m, ...) to each sample's loss (b, m) and its derivative (b,
c, m).

It may overwrite the scores.
"""


def cross_entropy(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    places = targets.unsqueeze(1)
    logarithms = scores.log_softmax(1)
    losses = logarithms.gather(1, places).squeeze(1).neg_()
    return losses, logarithms.exp_().scatter_(1, places, -1.0, reduce="add")


def _logistic(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logistic loss of scores and its derivative."""
    # From exp and log1p, whose last bits do not depend on a number's place in the tensor; those of
    # torch's sigmoid do.
    targets = targets.reshape(scores.mT.shape).mT.to(scores.dtype)
    small = scores.abs().neg_().exp_()
    losses = (small.log1p() + scores.clamp(min=0)).sub_(scores * targets).mean(1)
    weights = torch.where(scores < 0, small, 1.0).div_(small.add_(1))
    return losses, weights.sub_(targets).div_(scores.shape[1])


def _squared(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    residual = scores.sub_(targets.reshape(scores.mT.shape).mT)
    return residual.square().mean(1), residual.mul_(2 / scores.shape[1])


_CLOSED_FORMS: dict[Callable[..., Tensor], Derivative] = {
    nnf.cross_entropy: cross_entropy,
    nnf.binary_cross_entropy_with_logits: _logistic,
    nnf.mse_loss: _squared,
}


CURVATURE: dict[Derivative, Callable[[int], float]] = {
    # The largest eigenvalue that the loss's second derivative by the scores can have, from the
    # number of outputs.
    cross_entropy: lambda outputs: 1 / 2,
    _logistic: lambda outputs: 1 / (4 * outputs),
    _squared: lambda outputs: 2 / outputs,
}


def is_plain(model: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a model is of this kind and nothing else: hooks, parametrizations and a new
    forward change what it does.

    Parametrizations change the type; old-style spectral norms, weight norms and pruning are hooks,
    and leave parameters in another order when they are removed.
    """
    names = tuple(model._parameters)
    others = names != ("weight", "bias") if kind is nn.Linear else names not in ((), ("weight",))
    held = model._modules and kind is not nn.Sequential
    return type(model) is kind and not (others or held or model._buffers or is_changed(model))


def closed_form(known: KnownLoss | None, targets: Tensor) -> Derivative | None:
    """Return the derivative by the scores of a plain loss that has a closed form; None for others.

    For cross-entropy ``targets`` (m, ...), one client's, must be class numbers.
    """
    if known is None or known.options or known.ignored is not None:
        return None
    axes = 1 if known.kind.classes else 2  # axes of targets
    if targets.ndim != axes or (known.kind.classes and targets.is_floating_point()):
        return None
    return _CLOSED_FORMS.get(known.kind.function)


def aligned(W: Tensor) -> Tensor:
    """Return a copy of clients' matrices (b, c, f) whose rows begin at multiples of 64 bytes,
    whatever they come from.

    Kernels for operands that begin elsewhere add up in another order: a client alone would have
    other bits.
    """
    b, c, f = W.shape
    return W.new_empty(b, c, -(-f // 16) * 16).narrow(2, 0, f).copy_(W)


def scores_of(W: Tensor, bias: Tensor | None, A: Tensor) -> Tensor:
    """Return (b, c, m) for weights (b, c, f), the bias (b, c, 1) and samples (b, m, f)."""
    # A product with one column is another kernel for one client than for several.
    if A.shape[1] == 1:
        scores = torch.bmm(A, W.mT).mT
        return scores if bias is None else scores.add_(bias)
    return torch.bmm(W, A.mT) if bias is None else torch.baddbmm(bias, W, A.mT)
