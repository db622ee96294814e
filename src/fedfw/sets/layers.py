"""Sets for whole networks: a ball for each parameter, chosen by its name and shape."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import ClassVar

from torch import Tensor, nn

from fedfw.atoms import Atom, ReadAtom
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
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(32, 10))
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
