"""Clients without stored samples: arbitrary differentiable functions, or samples that are made when
they are needed, from the clients' numbers, so that any number of clients takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedfw.problems.base import ClientLosses
from fedfw.problems.stacks import Samples, Stack

Make = Callable[[Tensor], Samples]
"""Client numbers (m,) -> inputs (m, samples, ...) and targets (m, samples, ...); the same numbers,
the same samples.
"""
_NUMBERS_AT_ONCE = 2**26


class GeneratedLosses(ClientLosses):
    """f_i of clients that ``make`` makes; ``losses_of`` evaluates a stack of them, in the dtype of
    ``like``.

    A rank has those ``own`` of all n clients; by default all.
    """

    countable = False

    def __init__(
        self,
        n: int,
        make: Make,
        losses_of: Callable[[Stack], ClientLosses],
        like: Tensor,
        own: range | None = None,
    ) -> None:
        self._all_clients, self._own = n, range(n) if own is None else own
        self.n, self._make, self._losses_of, self._like = len(self._own), make, losses_of, like
        inputs, _ = make(torch.zeros(1, dtype=torch.int64))
        self._samples, self._numbers = inputs.shape[1], inputs.numel()
        self.sizes = torch.tensor(self._samples).expand(self.n)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        values, gradients = x.new_empty(len(x)), torch.empty_like(x)
        for part in self._pieces(who):
            picked = None if picks is None else picks[part]
            value, gradient = self._stacked(who[part]).value_and_gradient(
                x[part], self._all(part), picked
            )
            values[part], gradients[part] = value, gradient
        return values, gradients

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        parts = [
            self._stacked(who[part]).clipped_gradient(
                x[part],
                self._all(part),
                None if keep is None else keep[part],
                norm,
                clip,
                count[part],
            )
            for part in self._pieces(who)
        ]
        return torch.cat(parts)

    def data(self) -> Iterator[Tensor]:
        yield from self._make(
            torch.tensor([0, self._all_clients - 1])
        )  # of all of them it would take long

    def to(self, device: torch.device) -> GeneratedLosses:
        return GeneratedLosses(
            self._all_clients, self._make, self._losses_of, self._like.to(device), self._own
        )

    def _pieces(self, who: Tensor) -> Iterator[Tensor]:
        at_once = max(1, _NUMBERS_AT_ONCE // self._numbers)
        for begin in range(0, len(who), at_once):
            yield torch.arange(begin, min(len(who), begin + at_once), device=who.device)

    def _all(self, part: Tensor) -> Tensor:
        return torch.arange(len(part), device=part.device)

    def _stacked(self, who: Tensor) -> ClientLosses:
        device = self._like.device
        made = (
            t.to(self._like if t.is_floating_point() else device)
            for t in self._make(who.cpu() + self._own.start)
        )
        inputs, targets = made
        sizes = torch.full((len(who),), self._samples, device=device)
        return self._losses_of(Stack(torch.arange(len(who), device=device), inputs, targets, sizes))


class FunctionLosses(ClientLosses):
    """f_i are Python functions of one tensor of the start's shape; one call a client."""

    def __init__(
        self,
        functions: Sequence[Callable[[Tensor], Tensor]],
        start: Tensor,
        smoothness: Tensor | None = None,
    ) -> None:
        self.functions, self.shape, self.n = tuple(functions), tuple(start.shape), len(functions)
        self._start, self._smoothness = start.detach().clone(), smoothness

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        values, gradients = [], []
        for point, i in zip(x, who.tolist(), strict=True):
            leaf = point.detach().reshape(self.shape).requires_grad_()
            with torch.enable_grad():
                value = self.functions[i](leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
            values.append(value.detach().reshape(()))
            gradients.append(gradient.flatten())
        return torch.stack(values), torch.stack(gradients)

    def smoothness(self) -> Tensor | None:
        """Return the given L_i (n,), or the largest curvatures of functions that are quadratic."""
        if self._smoothness is not None:
            return self._smoothness
        found = [_quadratic_curvature(function, self._start) for function in self.functions]
        known = torch.tensor([one for one in found if one is not None], dtype=torch.float64)
        return known if len(known) == self.n and bool((known > 0).any()) else None

    def to(self, device: torch.device) -> FunctionLosses:
        return self


_WHOLE_HESSIAN = 64
"""Parameters up to which all second derivatives are worked out."""


def _quadratic_curvature(function: Callable[[Tensor], Tensor], start: Tensor) -> float | None:
    """Return the largest absolute second derivative along a line of a quadratic function; None for
    others.

    A function is taken to be quadratic if its gradient is affine along random lines through the
    start, up to rounding.
    """
    draw = torch.Generator().manual_seed(0)
    scale = 1 + start.abs().max()
    lines = [scale * torch.randn(start.shape, generator=draw).to(start) for _ in range(2)]
    try:
        here, _ = _gradient_and_change(function, start, lines[0])
        for line in lines:
            _, change = _gradient_and_change(function, start, line)
            tolerance = torch.finfo(start.dtype).eps ** 0.5 * float(change.abs().max())
            for far in (1.0, -30.0):
                there, _ = _gradient_and_change(function, start + far * line, line)
                error = (there - here) / far - change
                if not bool((error.abs() <= tolerance).all()):
                    return None
    except RuntimeError:  # it has no second derivatives
        return None
    p = start.numel()

    def product(v: Tensor) -> Tensor:
        _, change = _gradient_and_change(function, start, v.to(start).reshape(start.shape))
        return change.flatten().double()

    if p <= _WHOLE_HESSIAN:
        hessian = torch.stack([product(axis) for axis in torch.eye(p)])
        return float(torch.linalg.eigvalsh((hessian + hessian.T) / 2).abs().max())
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = LinearOperator(
        (p, p), matvec=lambda v: product(torch.from_numpy(v)).numpy(), dtype=float
    )
    first = lines[0].flatten().double().numpy()
    found = eigsh(operator, k=1, which="LM", tol=1e-3, v0=first, return_eigenvectors=False)
    return abs(float(found[0]))


def _gradient_and_change(
    function: Callable[[Tensor], Tensor], point: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a function's gradient at a point, and its second derivatives times a direction."""
    leaf = point.detach().clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(function(leaf), leaf, create_graph=True)
        along = (gradient * direction).sum()
    change: Tensor | None = None
    if along.requires_grad:  # the gradient of a linear function does not depend on the point
        (change,) = torch.autograd.grad(along, leaf, allow_unused=True)
    return gradient.detach(), torch.zeros_like(point) if change is None else change
