"""Clients without stored samples: arbitrary differentiable functions, or samples that are made when
they are needed, from the clients' numbers, so that any number of clients takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedfw.problems.base import ClientLosses
from fedfw.problems.curvature import quadratic_smoothness
from fedfw.problems.known_losses import KnownLoss
from fedfw.problems.stacks import Samples, Stack, StackedLosses

Make = Callable[[Tensor], Samples]
"""Client numbers (m,) -> inputs (m, samples, ...) and targets (m, samples, ...); the same numbers,
the same samples.
"""
_ENTRIES_AT_ONCE = 2**26  # of the inputs that are in memory at a time


class GeneratedLosses(ClientLosses):
    """f_i of clients that ``make`` makes, evaluated as ``losses`` evaluate stored ones, in the
    dtype of ``like``.

    A rank has those ``own`` of all n clients.
    """

    countable = False
    sizes: Tensor

    def __init__(
        self,
        n: int,
        make: Make,
        losses: StackedLosses,
        known: KnownLoss | None,
        like: Tensor,
        own: range,
    ) -> None:
        """Keep the makers, and make client 0 to see how large a client is."""
        # As they were given: for a copy in float64 or on another device.
        self._arguments = n, make, losses, known, like, own
        self._make = make
        self._losses = losses
        self._known = known
        self._like = like  # dtype and device of the data
        self._first = own.start  # the number of this rank's first client
        self._last_of_all = n - 1
        self.n = len(own)
        self.per = losses.per
        self.weighs = losses.weighs
        # All clients are as large as client 0.
        inputs, _ = make(torch.zeros(1, dtype=torch.int64))
        self._entries = inputs.numel()  # of a client's inputs
        self.sizes = torch.tensor(inputs.shape[1]).expand(self.n)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return losses (m,) and gradients (m, p) of the clients ``who``; their samples are made,
        and evaluated as a stack, for a few clients at a time.
        """
        values = x.new_empty(len(x))
        gradients = torch.empty_like(x)
        for part, losses, rows in self._pieces(who):
            picked = None if picks is None else picks[part]
            values[part], gradients[part] = losses.value_and_gradient(x[part], rows, picked)
        return values, gradients

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        """Make the clients' samples a piece at a time, and clip each piece as a stack."""
        results = []
        for part, losses, rows in self._pieces(who):
            keep_of_part = None if keep is None else keep[part]
            results.append(
                losses.clipped_gradient(x[part], rows, keep_of_part, norm, clip, count[part])
            )
        return torch.cat(results)

    def data(self) -> Iterator[Tensor]:
        # The first and the last client stand for all, whose samples would take long to make.
        yield from self._make(torch.tensor([0, self._last_of_all]))

    def to(self, device: torch.device) -> GeneratedLosses:
        n, make, losses, known, like, own = self._arguments
        return GeneratedLosses(n, make, losses.to(device), known, like.to(device), own)

    def _pieces(self, who: Tensor) -> Iterator[tuple[slice, StackedLosses, Tensor]]:
        """Yield slices of ``who`` (m,), with the losses of the samples made for these clients and
        the rows of all of them; each slice is so short that its samples fit in memory.
        """
        at_once = max(1, _ENTRIES_AT_ONCE // self._entries)
        for begin in range(0, len(who), at_once):
            part = slice(begin, begin + at_once)
            # make gets numbers among the clients of all ranks, on the CPU.
            inputs, targets = self._make(who[part].cpu() + self._first)
            if self._known is not None:
                targets = self._known.converted(targets, self._like.dtype)
            # Integers keep their type: they are labels or indices.
            inputs, targets = (
                t.to(self._like if t.is_floating_point() else self._like.device)
                for t in (inputs, targets)
            )
            rows = torch.arange(len(inputs), device=who.device)
            sizes = self.sizes[:1].to(inputs.device).expand(len(inputs)).contiguous()
            yield part, self._losses.on_stacks([Stack(rows, inputs, targets, sizes)], sizes), rows


class FunctionLosses(ClientLosses):
    """f_i are Python functions of one tensor of ``start``'s shape; one call a client."""

    def __init__(
        self,
        functions: Sequence[Callable[[Tensor], Tensor]],
        start: Tensor,
        smoothness: Tensor | None = None,
    ) -> None:
        """Keep the functions; ``smoothness`` (n,) are their L_i, where these are known."""
        self.functions = tuple(functions)
        self.shape = tuple(start.shape)
        self.n = len(functions)
        self._start = start.detach().clone()
        self._smoothness = smoothness

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the clients' losses (m,) and gradients (m, p), by differentiating each client's
        function at its point.
        """
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
        """Return the given L_i (n,), or those of functions that are quadratic."""
        if self._smoothness is not None:
            return self._smoothness
        constants = [quadratic_smoothness(function, self._start) for function in self.functions]
        quadratic = [constant for constant in constants if constant is not None]
        # Linear functions have curvature 0, from which no step size can be derived.
        if len(quadratic) < self.n or max(quadratic) == 0:
            return None
        return torch.tensor(quadratic, dtype=torch.float64)

    def to(self, device: torch.device) -> FunctionLosses:
        return self
