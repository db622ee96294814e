"""Sets for whole networks: a ball for each parameter, chosen by its name and shape, or so that the
network's Lipschitz constant is at most L.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import ClassVar

from torch import Tensor, nn

from fedfw.atoms import Atom, ReadAtom
from fedfw.lipschitz.bound import flattening_factor, network_constant, weights_constant
from fedfw.sets.base import ConstraintSet, Request, Shape, Shapes, Size, shapes_of
from fedfw.sets.norm_balls import LinfBall, RowBalls
from fedfw.sets.product import BoundProduct, Product
from fedfw.sets.spectral import SpectralBall


class NetworkSet(ConstraintSet):
    """Base class of the sets that choose a ball for each parameter of a model.

    On a single parameter such a set is the ball that it chooses for a parameter of that shape.
    `bind` makes it a product over all parameters of a model.

    Notes
    -----
    A subclass defines `ball` and `balls`.
    """

    @abstractmethod
    def ball(self, shape: Shape) -> ConstraintSet:
        """Return the set of a single parameter of a given shape, about whose place in a network
        nothing is known.
        """

    @abstractmethod
    def balls(self, parameters: nn.Module | Shapes) -> dict[str, ConstraintSet]:
        """Return the set of each trainable parameter, by name."""

    def bind(self, parameters: nn.Module | Shapes) -> BoundProduct:
        return Product(self.balls(parameters)).bind(parameters)

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        return self.ball(shape)._lmo(g, shape, request)

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return self.ball(shape)._violation(x, shape)

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return self.ball(shape)._project(x, shape)

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        return self.ball(shape)._accepts(atom, shape, tol)

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        return self.ball(shape).readers(shape)

    def diameter(self, shape: Shape) -> float:
        return self.ball(shape).diameter(shape)

    def _norms(self, shape: Shape) -> dict[str, float]:
        return self.ball(shape)._norms(shape)


@dataclass(frozen=True, eq=False)
class LayerBalls(NetworkSet):
    """A ball for each parameter of a network, as the optimizers Muon and Scion use them, here as
    hard constraints.

    Each norm measures what a layer does to the vectors that go through it, so that one radius suits
    layers of all sizes. With in and out for the sides of a weight as a matrix (out x everything
    else), and d for its row length:

    - matrices, convolutions and the heads of classifiers: spectral norm at most rho max(1, sqrt(out
      / in));
    - embeddings and positions: every row in an l2 ball of radius embedding sqrt(d);
    - the head of a language model: every entry at most head / sqrt(d);
    - vectors, such as biases: every entry at most bias.

    What a parameter is follows from its name, whether a model is given or the names and shapes of
    its parameters: an embedding has a part that begins with ``embedding``, positions one that
    begins with ``position``, and the head of a language model is the parameter of a model with an
    embedding that has a part ``head``. Parts are divided by dots.

    Parameters
    ----------
    rho : float
        The spectral norm of matrices with at least as many columns as rows; positive and finite.
    bias : float, default 0.5
        The largest magnitude of an entry of a vector.
    embedding : float, default 2.5
        The largest root mean square of a row of an embedding.
    head : float, default 5.0
        The largest magnitude of an entry of a language model's head, times sqrt(d).

    Raises
    ------
    ValueError
        If a radius is not a positive finite number.

    Examples
    --------
    >>> import torch, fedfw
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(32, 10)
    ... )
    >>> fedfw.LayerBalls(4.0).balls(model)["2.weight"], fedfw.LayerBalls(4.0).balls(model)["2.bias"]
    (SpectralBall(r=4.0), LinfBall(r=0.5))
    >>> fedfw.LayerBalls(4.0).bind(model).entries
    554
    """

    name: ClassVar[str] = "layers"

    rho: Size
    bias: Size = 0.5
    embedding: Size = 2.5
    head: Size = 5.0

    def ball(self, shape: Shape) -> ConstraintSet:
        if len(shape) < 2:
            return LinfBall(self.bias)
        return SpectralBall(self.rho * max(1.0, sqrt(shape[0] / prod(shape[1:]))))

    def balls(self, parameters: nn.Module | Shapes) -> dict[str, ConstraintSet]:
        shapes = shapes_of(parameters)
        language = any(_has_part(name, "embedding") for name in shapes)
        return {name: self._ball_of(name, shape, language) for name, shape in shapes.items()}

    def _ball_of(self, name: str, shape: Shape, language: bool) -> ConstraintSet:
        """Return the ball of a parameter by its name and shape: embeddings and the head of a
        language model have balls of their own.
        """
        if len(shape) >= 2 and (_has_part(name, "embedding") or _has_part(name, "position")):
            return RowBalls(self.embedding * sqrt(prod(shape[1:])))
        if len(shape) >= 2 and language and "head" in name.split("."):
            return LinfBall(self.head / sqrt(prod(shape[1:])))
        return self.ball(shape)


def _has_part(name: str, beginning: str) -> bool:
    """Return whether a part of a parameter's name begins so."""
    return any(part.startswith(beginning) for part in name.split("."))


def layer_balls(
    model: nn.Module | Shapes,
    rho: float,
    *,
    bias: float = 0.5,
    embedding: float = 2.5,
    head: float = 5.0,
) -> Product:
    """Return the sets of `LayerBalls` for a model as a `Product`, of which single ones can be
    replaced.

    Parameters
    ----------
    model : nn.Module or mapping from str to tuple of int
        The model, or the names and shapes of its parameters.
    rho, bias, embedding, head : float
        As for `LayerBalls`.

    Returns
    -------
    Product
        With a set for each trainable parameter.

    Examples
    --------
    >>> import torch, fedfw
    >>> balls = fedfw.layer_balls(torch.nn.Linear(4, 16), rho=3.0)
    >>> balls
    Product({'weight': SpectralBall(r=6.0), 'bias': LinfBall(r=0.5)})
    >>> fedfw.Product(balls.sets | {"bias": fedfw.L2Ball(1.0)}).bind(torch.nn.Linear(4, 16)).entries
    80
    """
    return Product(LayerBalls(rho, bias, embedding, head).balls(model))


_TOLERANCE = 1e-5
_ROUNDINGS = 64
"""The part that a radius leaves for: how far outside an atom may be (1e-6) and the bound's own
rounding; float32 roundings.
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
    one, so all models of a run have the constant L, whichever clients take part.

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
        """Return the ball of each parameter: radii such that every layer has the largest constant
        for which the whole network's stays at most L.
        """
        if not isinstance(parameters, nn.Module):
            raise ValueError(
                f"{self!r} was given names and shapes of parameters, expected the model itself: "
                "what a layer does to distances depends on its stride and on the layers between"
            )
        constant = self._constant_of_layers(parameters)
        names = {id(p): name for name, p in parameters.named_parameters() if p.requires_grad}
        chosen: dict[str, ConstraintSet] = {}
        radii: dict[str, float] = {}  # a weight that several layers share has the least of theirs

        def choose(_: str, layer: nn.Linear | nn.Conv2d) -> float:
            """Store the balls of a layer's weight and bias in ``chosen``; return the layer's
            constant.
            """
            weight = names.get(id(layer.weight))
            if weight is not None:
                radii[weight] = min(radii.get(weight, inf), constant / flattening_factor(layer))
                chosen[weight] = _inside(radii[weight], tuple(layer.weight.shape))
            if layer.bias is not None and id(layer.bias) in names:
                chosen[names[id(layer.bias)]] = LinfBall(self.bias)
            return constant

        network_constant(parameters, choose)  # calls it for every layer with weights
        left = [name for name in shapes_of(parameters) if name not in chosen]
        if left:
            raise ValueError(
                f"{self!r}: parameter {left[0]!r} is no weight of a linear or convolutional layer"
            )
        return chosen

    def _constant_of_layers(self, model: nn.Module) -> float:
        """Return the largest common constant of the trained layers with which the network's bound
        is at most L, by bisection: the bound is made of products and sums of positive terms, so it
        grows with that constant. Layers that are not trained keep the constants they have.
        """
        fixed: dict[str, float] = {}

        def of_network(constant: float) -> float:
            """Return the network's constant if every layer that is trained has this one."""

            def of_layer(name: str, layer: nn.Linear | nn.Conv2d) -> float:
                """Return a layer's constant; that of a fixed layer is worked out once."""
                if layer.weight.requires_grad:
                    return constant
                if name not in fixed:
                    fixed[name] = weights_constant(name, layer)
                return fixed[name]

            return network_constant(model, of_layer)

        least = of_network(0.0)
        if least >= self.L:
            raise ValueError(
                f"{self!r}: the model's constant is at least {least:g} with any weights, expected "
                "below L"
            )
        low = 0.0
        high = 1.0
        # The limit is for a network whose bound does not depend on the trained layers.
        while of_network(high) <= self.L and high < 2.0**100:
            low = high
            high = 2 * high
        for _ in range(60):  # more digits than float64 has
            middle = (low + high) / 2
            low, high = (middle, high) if of_network(middle) <= self.L else (low, middle)
        return low


def _inside(radius: float, shape: Shape) -> SpectralBall:
    """Return the spectral ball of this radius for weights of a shape, less what rounding may
    add.
    """
    side = min(shape[0], prod(shape[1:]))
    return SpectralBall(radius * (1 - _TOLERANCE - _ROUNDINGS * 2.0**-24 * sqrt(side)))
