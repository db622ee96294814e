"""Any module and loss: gradients for many clients through torch.func.vmap, clients of one size together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedfw.problems.base import ClientLosses, Shapes
from fedfw.problems.linear import LossFunction
from fedfw.problems.stacks import Samples, Stack, stack_clients


def unflatten(x: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """A flat vector (p,) as named parameters."""
    pieces, start = {}, 0
    for name, shape in shapes.items():
        pieces[name] = x[start : start + prod(shape)].reshape(shape)
        start += prod(shape)
    return pieces


def flatten(parameters: Sequence[Tensor]) -> Tensor:
    """Parameters as one vector (p,), detached."""
    return torch.cat([p.detach().flatten() for p in parameters])


class ModuleLosses(ClientLosses):
    """f_i(x) = loss(model_x(inputs_i), targets_i), a mean over client i's samples."""

    def __init__(
        self, model: nn.Module, loss: LossFunction, shapes: Shapes, stacks: list[Stack], sizes: Tensor
    ) -> None:
        self._model, self._loss, self._shapes, self._stacks = model, loss, shapes, stacks
        self.sizes, self.n = sizes, len(sizes)

        def value(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
            return loss(functional_call(model, unflatten(x, shapes), (inputs,)), targets)

        self._together: Callable[..., Any] = vmap(grad_and_value(value), randomness="different")

    @classmethod
    def of(cls, model: nn.Module, loss: LossFunction, shapes: Shapes, clients: list[Samples]) -> ModuleLosses:
        sizes = torch.tensor([len(x) for x, _ in clients])
        return cls(model, loss, shapes, stack_clients(clients, may_pad=False), sizes)

    def to(self, device: torch.device) -> ModuleLosses:
        stacks = [stack.to(device) for stack in self._stacks]
        assert self.sizes is not None
        return ModuleLosses(copy.deepcopy(self._model).to(device), self._loss, self._shapes, stacks, self.sizes)

    def value_and_gradient(self, x: Tensor, who: Tensor, picks: Tensor | None) -> tuple[Tensor, Tensor]:
        values, gradients = x.new_empty(len(x)), torch.empty_like(x)
        for stack in self._stacks:
            at, rows = (who[:, None] == stack.who.to(who.device)).nonzero(as_tuple=True)
            if not len(at):
                continue
            inputs, targets = stack.inputs, stack.targets
            if len(rows) != len(stack.who) or not torch.equal(rows, torch.arange(len(rows), device=rows.device)):
                inputs, targets = inputs[rows], targets[rows]
            if picks is not None:
                each = torch.arange(len(at), device=x.device)[:, None]
                inputs, targets = inputs[each, picks[at]], targets[each, picks[at]]
            gradients[at], values[at] = self._together(x[at], inputs, targets)
        return values, gradients
