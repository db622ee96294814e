"""Layers whose Lipschitz constant is known; a module of one's own says its constant by an attribute
``lipschitz``.
"""

import torch
from torch import Tensor, nn


class MaxMin(nn.Module):
    """The larger and the smaller of each pair of channels, an activation that keeps distances, and
    gradients, as long as they were.

    Channel j of the first half is paired with channel j of the second half; the maxima come first.
    It is 1-Lipschitz in l2, because a sorted pair is nearer to another sorted pair than in any
    other order. Where a ReLU loses half of a vector, this loses nothing, so a network whose layers
    all have the constant 1 can still use it fully (Anil, Lucas and Grosse, 2019).

    Examples
    --------
    >>> import torch
    >>> from fedfw.lipschitz import MaxMin
    >>> MaxMin()(torch.tensor([[1.0, 4.0, 3.0, 2.0]])).tolist()
    [[3.0, 4.0, 1.0, 2.0]]
    """

    lipschitz: float = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (m, channels, ...) to the same shape; the number of channels is even."""
        if inputs.shape[1] % 2:
            raise ValueError(f"inputs have {inputs.shape[1]} channels, expected a multiple of 2")
        first_half, second_half = inputs.chunk(2, 1)
        return torch.cat(
            [torch.maximum(first_half, second_half), torch.minimum(first_half, second_half)], 1
        )


class Residual(nn.Module):
    """``inputs + body(inputs)``, whose constant is at most 1 plus that of the body.

    The body is given a copy of the inputs, so that what is added to its outputs are the inputs
    themselves, even where a layer of the body works in place.

    Parameters
    ----------
    body : nn.Module
        Its outputs have the shape of its inputs.

    Examples
    --------
    >>> import torch
    >>> from fedfw.lipschitz import Residual
    >>> Residual(torch.nn.ReLU())(torch.tensor([[-1.0, 2.0]])).tolist()
    [[-1.0, 4.0]]
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (m, ...) to the same shape."""
        change: Tensor = self.body(inputs.clone())
        # A sum of other shapes repeats numbers, which the bound does not count.
        if change.shape != inputs.shape:
            raise ValueError(
                f"the body makes {tuple(change.shape)} of {tuple(inputs.shape)}, expected the same "
                "shape"
            )
        return inputs + change
