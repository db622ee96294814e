"""Clients given as arbitrary differentiable functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedfw.problems.base import ClientLosses


class FunctionLosses(ClientLosses):
    """f_i are Python functions of one tensor of the start's shape; one call a client."""

    def __init__(
        self, functions: Sequence[Callable[[Tensor], Tensor]], shape: tuple[int, ...]
    ) -> None:
        self.functions, self.shape, self.n = tuple(functions), shape, len(functions)

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

    def to(self, device: torch.device) -> FunctionLosses:
        return self
