"""The set of all weights of a network for which its Lipschitz constant is at most L, by a ball for
each layer.
"""

from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import ClassVar

from torch import nn

from fedfw.lipschitz.bound import flattening_factor, network_constant, weights_constant
from fedfw.sets.base import ConstraintSet, Shape, Shapes, Size, shapes_of
from fedfw.sets.layers import NetworkSet
from fedfw.sets.norm_balls import LinfBall
from fedfw.sets.spectral import SpectralBall

_TOLERANCE, _ROUNDINGS = 1e-5, 64
"""What a radius leaves for: how far outside an atom may be (1e-6) and the bound's own rounding;
float32 roundings.
"""


@dataclass(frozen=True, eq=False)
class LipschitzNet(NetworkSet):
    """Spectral balls whose radii make every network in the set L-Lipschitz, as
    `fedfw.lipschitz_bound` proves it.

    Every linear and convolutional layer gets the same constant c, the largest for which the bound
    of the whole network is at most L: in a chain of k such layers whose other layers have constants
    that multiply to q, c = (L / q)^(1/k). The flattened weight of a linear layer then has spectral
    norm at most c, and that of a convolution at most c / sqrt(m), where m is the number of windows
    in which a pixel lies (see `fedfw.lipschitz.norms`). Every convex combination of such weights is
    one, so all models of a run have the constant L, whoever takes part.

    Parameters
    ----------
    L : float
        The largest Lipschitz constant of the network, in l2; positive and finite.
    bias : float, default 0.5
        The largest magnitude of an entry of a bias, which has no influence on the constant.

    Raises
    ------
    ValueError
        If a parameter is not a positive finite number. `bind` refuses models with a layer whose
        constant is not known, and names and shapes without the model.

    Notes
    -----
    Radii are smaller than said above by a relative 1e-5 and 64 sqrt(q) 2^-24 for the smaller side q
    of the weight. That covers atoms that a server accepts 1e-6 outside of the set, and 64 roundings
    of all weights to float32 that add up in the worst direction: one moves a matrix by at most
    2^-24 of its Frobenius norm, which is at most sqrt(q) times the spectral norm.

    On a single parameter it is the set of a network that consists of this layer, with stride 1.

    Examples
    --------
    >>> import torch, fedfw
    >>> model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> bound = fedfw.LipschitzNet(4.0).bind(model)
    >>> [round(ball.r, 3) for ball in bound.parts]
    [2.0, 0.5, 2.0, 0.5]
    """

    name: ClassVar[str] = "lipschitz"

    L: Size
    bias: Size = 0.5

    def ball(self, shape: Shape) -> ConstraintSet:
        if len(shape) < 2:
            return LinfBall(self.bias)
        return _inside(self.L / sqrt(prod(shape[2:])), shape)

    def balls(self, parameters: nn.Module | Shapes) -> dict[str, ConstraintSet]:
        if not isinstance(parameters, nn.Module):
            raise ValueError(
                f"{self!r} was given names and shapes of parameters, expected the model itself: "
                "what a layer does to distances depends on its stride and on the layers between"
            )
        constant = self._constant_of_layers(parameters)
        names = {id(p): name for name, p in parameters.named_parameters() if p.requires_grad}
        chosen: dict[str, ConstraintSet] = {}
        radii: dict[str, float] = {}

        def choose(_: str, layer: nn.Linear | nn.Conv2d) -> float:
            weight = names.get(id(layer.weight))
            if weight is not None:
                radii[weight] = min(radii.get(weight, inf), constant / flattening_factor(layer))
                chosen[weight] = _inside(radii[weight], tuple(layer.weight.shape))
            if layer.bias is not None and id(layer.bias) in names:
                chosen[names[id(layer.bias)]] = LinfBall(self.bias)
            return constant

        network_constant(parameters, choose)
        left = [name for name in shapes_of(parameters) if name not in chosen]
        if left:
            raise ValueError(
                f"{self!r}: parameter {left[0]!r} is no weight of a linear or convolutional layer"
            )
        return chosen

    def _constant_of_layers(self, model: nn.Module) -> float:
        """Return the largest constant that all layers with weights may have, by bisection; a layer
        that is fixed has its own.

        The bound of the network grows with it, in products and in sums with positive terms.
        """
        fixed: dict[str, float] = {}

        def of_network(constant: float) -> float:
            def of_layer(name: str, layer: nn.Linear | nn.Conv2d) -> float:
                if layer.weight.requires_grad:
                    return constant
                if name not in fixed:
                    fixed[name] = weights_constant(name, layer)
                return fixed[name]

            return network_constant(model, of_layer)

        if (least := of_network(0.0)) >= self.L:
            raise ValueError(
                f"{self!r}: the model's constant is at least {least:g} with any weights, expected "
                "below L"
            )
        low = 0.0
        high = 1.0
        while of_network(high) <= self.L and high < 2.0**100:
            low = high
            high = 2 * high
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if of_network(middle) <= self.L else (low, middle)
        return low


def _inside(radius: float, shape: Shape) -> SpectralBall:
    """Return the spectral ball of this radius for weights of a shape, less what rounding may
    add.
    """
    side = min(shape[0], prod(shape[1:]))
    return SpectralBall(radius * (1 - _TOLERANCE - _ROUNDINGS * 2.0**-24 * sqrt(side)))
