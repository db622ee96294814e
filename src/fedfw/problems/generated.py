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
_ENTRIES_AT_ONCE = 2**26  # of the inputs that are in memory at a time


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
        """Keep the makers, and make client 0 to see how large a client is."""
        self._all_clients = n  # clients of all ranks
        self._own = range(n) if own is None else own  # the numbers of this rank's clients
        self.n = len(self._own)  # clients of this rank
        self._make = make
        self._losses_of = losses_of
        self._like = like  # dtype and device of the data
        # All clients have as many samples as client 0, which is made here to count them.
        inputs, _ = make(torch.zeros(1, dtype=torch.int64))
        self._samples = inputs.shape[1]  # of a client
        self._entries = inputs.numel()  # of a client's inputs
        self.sizes = torch.tensor(self._samples).expand(self.n)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Make the clients' samples a piece at a time, and evaluate each piece as a stack."""
        values = x.new_empty(len(x))
        gradients = torch.empty_like(x)
        for part in self._pieces(who):
            picked = None if picks is None else picks[part]
            value, gradient = self._stacked(who[part]).value_and_gradient(
                x[part], self._all(part), picked
            )
            values[part] = value
            gradients[part] = gradient
        return values, gradients

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        """Make the clients' samples a piece at a time, and clip each piece as a stack."""
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
        # The first and the last client stand for all, whose samples would take long to make.
        yield from self._make(torch.tensor([0, self._all_clients - 1]))

    def to(self, device: torch.device) -> GeneratedLosses:
        return GeneratedLosses(
            self._all_clients, self._make, self._losses_of, self._like.to(device), self._own
        )

    def _pieces(self, who: Tensor) -> Iterator[Tensor]:
        """Yield places in ``who``, so few at a time that the samples made for them fit in
        memory.
        """
        at_once = max(1, _ENTRIES_AT_ONCE // self._entries)
        for begin in range(0, len(who), at_once):
            yield torch.arange(begin, min(len(who), begin + at_once), device=who.device)

    def _all(self, part: Tensor) -> Tensor:
        """Return the rows of all clients of a piece, which is a stack of its own."""
        return torch.arange(len(part), device=part.device)

    def _stacked(self, who: Tensor) -> ClientLosses:
        """Return the losses of the clients ``who`` (m,), whose samples are made here."""
        device = self._like.device
        # make gets numbers among the clients of all ranks, on the CPU. Integers keep their type:
        # they are labels or indices.
        inputs, targets = (
            t.to(self._like if t.is_floating_point() else device)
            for t in self._make(who.cpu() + self._own.start)
        )
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
        """Keep the functions; their points have the shape of ``start``."""
        self.functions = tuple(functions)
        self.shape = tuple(start.shape)
        self.n = len(functions)
        self._start = start.detach().clone()
        self._smoothness = smoothness

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Call each client's function at its point and differentiate it."""
        values = []
        gradients = []
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
        constants = torch.tensor(
            [constant for constant in found if constant is not None], dtype=torch.float64
        )
        return constants if len(constants) == self.n and bool((constants > 0).any()) else None

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
