"""Certified accuracy: how many samples keep their right class whatever is added to them, up to a
length.
"""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedfw.lipschitz.bound import lipschitz_bound

_CHUNK = 4096
_ROUNDING = 1e-9
"""The change by float64 in a margin, relative to the scores and to what the network can
make of its input.
"""


def certified_radii(model: nn.Module, inputs: Tensor, targets: Tensor, constant: float) -> Tensor:
    """Return how far each sample can be moved, in l2, without changing its class; at most 0 where
    the class is wrong.

    The margin is the score of the true class less the best of the others. It is a difference of two
    scores, so moving an input by a length d changes it by at most sqrt(2) L d, where L is the
    constant of the network.

    Parameters
    ----------
    model : nn.Module
        It gives scores (m, classes).
    inputs : Tensor
        (m, ...).
    targets : Tensor
        (m,): class numbers.
    constant : float
        An upper bound on the Lipschitz constant of the model.

    Returns
    -------
    Tensor
        (m,), float64. The scores are worked out in float64, and a billionth of what enters a margin
        is taken off for their rounding errors.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[3.0, 1.0], [0.0, 1.0]])
    >>> certified_radii(torch.nn.Identity(), x, torch.tensor([0, 0]), 1.0).round(
    ...     decimals=4
    ... ).tolist()
    [1.4142, -0.7071]
    """
    model = copy.deepcopy(model).double().eval()
    radii = []
    with torch.no_grad():
        for start in range(0, len(inputs), _CHUNK):
            chunk = inputs[start : start + _CHUNK].double()
            true_class = targets[start : start + _CHUNK, None]
            # A first layer that works in place would change the samples.
            scores = model(chunk.clone())
            others = scores.scatter(1, true_class, -math.inf)
            margins = scores.gather(1, true_class)[:, 0] - others.amax(1)
            sizes = scores.norm(dim=1) + constant * chunk.flatten(1).norm(dim=1)
            # The clamp gives a network with the constant 0 infinite radii instead of NaN.
            slope = math.sqrt(2) * max(constant, torch.finfo(scores.dtype).tiny)
            radii.append((margins - _ROUNDING * sizes) / slope)
    return torch.cat(radii)


def certified_accuracy(
    model: nn.Module,
    samples: tuple[Tensor, Tensor],
    radii: Sequence[float],
    constant: float | None = None,
) -> dict[float, float]:
    """Return the share of samples that are classified rightly, with a proof that nothing of a given
    length changes that.

    A sample counts at a radius d if the model gives ``inputs + delta`` the right class for every
    ``delta`` with ``||delta||_2 <= d``. Radii are in the units of the model's inputs: for images
    with pixels in [0, 1], a radius of 0.5 is a change of one half of one pixel, or of less in many
    pixels.

    Parameters
    ----------
    model : nn.Module
        One that `lipschitz_bound` accepts, with scores (m, classes).
    samples : pair of Tensor
        Inputs (m, ...) and class numbers (m,).
    radii : sequence of float
        At least 0; at 0 it is the accuracy, where no two scores are equal.
    constant : float, optional
        The model's bound where it is known already.

    Returns
    -------
    dict of float to float
        The share of samples, by radius.

    Raises
    ------
    ValueError
        If no bound is known for a layer of the model, targets are not class numbers, or a radius is
        below 0.

    Notes
    -----
    What is certified is the network in exact arithmetic with these weights.

    Examples
    --------
    >>> import torch, fedfw
    >>> samples = torch.tensor([[3.0, 1.0], [1.5, 1.0]]), torch.tensor([0, 0])
    >>> fedfw.certified_accuracy(torch.nn.Identity(), samples, [0.1, 1.0])
    {0.1: 1.0, 1.0: 0.5}
    """
    inputs, targets = samples
    if not all(radius >= 0 for radius in radii):
        raise ValueError(f"radii={list(radii)}, expected numbers of at least 0")
    if targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(
            f"targets are {targets.dtype} of shape {tuple(targets.shape)}, expected class numbers "
            "(m,)"
        )
    if constant is None:
        constant = lipschitz_bound(copy.deepcopy(model).eval())  # as it is evaluated
    reached = certified_radii(model, inputs, targets, constant)
    return {radius: float((reached >= radius).double().mean()) for radius in radii}
