"""The function that is minimised: F(x) = sum_i w_i f_i(x), over the clients of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedfw.checks import all_finite
from fedfw.errors import NonFiniteError
from fedfw.problems.base import ClientLosses, Shapes, WeightedGradient
from fedfw.ranks import Ranks
from fedfw.sets.base import ConstraintSet
from fedfw.sets.registry import as_set


class Objective:
    """F and its parts, at points x that are flat vectors (p,) of the model's trained parameters."""

    model: nn.Module
    losses: ClientLosses
    weights: Tensor
    """(n,) in float64: the w_i of all clients."""
    start: Tensor
    """(p,): where a run begins."""
    shapes: Shapes
    """Of the parameters, by name."""
    ranks: Ranks
    _smoothness: tuple[ClientLosses | None, tuple[float, float] | None] = None, None

    @property
    def n(self) -> int:
        """Return number of clients."""
        return self.losses.n

    def bind(self, constraint: Any) -> ConstraintSet:
        """Return the constraint, a set, a `Product` or a text such as ``"l1:10"``, on the flat
        vector of the parameters.
        """
        bound: ConstraintSet = as_set(constraint).bind(self.model)
        return bound

    def shaped(self, x: Tensor) -> Tensor:
        """Return a flat point (p,) in the shape of the parameter where the model is one matrix,
        else as it is.
        """
        (shape, *others) = self.shapes.values()
        return x.reshape(shape) if not others and len(shape) > 1 else x

    def value_and_gradient(
        self, x: Tensor, round_: int = 0, *, exact: bool = False
    ) -> tuple[float, Tensor]:
        """Return F and its gradient at one point x, flat (p,) or in the parameter's shape, in which
        the gradient then is, too.

        ``exact`` asks for float64 whatever the data are in.
        """
        values, gradients = self.each_value_and_gradient(x.flatten(), round_, exact=exact)
        value, gradient = self.total(values, gradients, round_)
        return value, gradient.reshape(x.shape)

    def each_value_and_gradient(
        self, x: Tensor, round_: int = 0, *, exact: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return w_i f_i (m,) and w_i grad f_i (m, p) at one point x (p,), of all clients that this
        rank keeps.
        """
        who = self.losses.all_clients(x.device)
        weights = self._own_weights(who)
        oracle = WeightedGradient(
            self.losses,
            weights.to(x.dtype),
            who,
            lambda: None,
            round_,
            exact_weights=weights,
        )
        return oracle(x.expand(len(who), -1), exact=exact)

    def total(self, values: Tensor, gradients: Tensor, round_: int = 0) -> tuple[float, Tensor]:
        """Return F and its gradient (p,): the sums over all clients of values (m,) and gradients
        (m, p) from `each_value_and_gradient`.
        """
        gradient = gradients.sum(0)
        if not all_finite(gradient):
            who = self.losses.all_clients(gradient.device)
            clients = who[~gradients.isfinite().all(1)].tolist()
            raise NonFiniteError(
                f"round {round_}: NaN or infinity in the gradient of client {clients[:10]}", clients
            )
        value, gradient = self.ranks.sums(values.double().sum(), gradient)
        return float(value), gradient

    def _own_weights(self, who: Tensor) -> Tensor:
        """Return the weights (m,) of the clients that this rank keeps."""
        return self.weights if self.ranks.size == 1 else self.weights[who]

    def works_in_float64(self) -> bool:
        """Return whether losses and gradients can be computed in float64, from a trial with the
        first client at the start.
        """
        if self.start.dtype is torch.float64:
            return True
        try:
            results = self.losses.exactly(
                self.start[None], self.losses.all_clients(self.start.device)[:1]
            )
        except RuntimeError:
            return False
        return all(result.dtype is torch.float64 for result in results)

    def value(self, x: Tensor) -> float:
        """Return F at one point x, flat (p,) or in the parameter's shape."""
        who = self.losses.all_clients(x.device)
        values = self.each_value_at(x.flatten().expand(len(who), -1))
        return float(self.ranks.sums(values.sum())[0])

    def each_value_at(self, points: Tensor) -> Tensor:
        """Return w_i f_i(x_i) (m,) in float64, with a point (m, p) for each client that this rank
        keeps.
        """
        who = self.losses.all_clients(points.device)
        return self.losses.value(points, who).double() * self._own_weights(who)

    def smoothness(self) -> float | None:
        """Return L' = n max w_i L_i, the smoothness of F's worst term, where it is known."""
        worst = self._worst_smoothness()
        return None if worst is None else worst[0]

    def local_smoothness(self) -> float | None:
        """Return max L_i, the smoothness of the worst f_i itself, where it is known."""
        worst = self._worst_smoothness()
        return None if worst is None else worst[1]

    def _worst_smoothness(self) -> tuple[float, float] | None:
        """Return n max w_i L_i and max L_i; computed once for the losses that there are."""
        losses, constants = self._smoothness
        if losses is not self.losses:
            constants = self._compute_smoothness()
            self._smoothness = self.losses, constants
        return constants

    def _compute_smoothness(self) -> tuple[float, float] | None:
        """Return the largest n w_i L_i and the largest L_i over all clients of all ranks; None
        where one is not known.
        """
        constants = self.losses.smoothness()
        who = self.losses.all_clients(self.weights.device)
        largest_here = None
        if constants is not None:
            weighted = self.n * float((self._own_weights(who).cpu() * constants.cpu()).max())
            largest_here = weighted, float(constants.max())
        of_ranks = self.ranks.all_gather_object(largest_here)
        if None in of_ranks:
            return None
        return max(pair[0] for pair in of_ranks), max(pair[1] for pair in of_ranks)
