"""Any module and loss: gradients for many clients through torch.func, clients of one size together."""

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

_WORKING_FLOATS = 2**27
"""How many numbers the layers' outputs may take at once (half a gigabyte, a few times over with their gradients)."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


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

        each: Callable[..., Any] = grad_and_value(value)
        # Convolutions with a kernel for each client are several times slower on a CPU than one client after another.
        convolves = any(isinstance(module, _CONVOLUTIONS) for module in model.modules())
        one_by_one = convolves and stacks[0].inputs.device.type == "cpu"
        self._together = _in_turn(each) if one_by_one else vmap(each, randomness="different")
        self._at_once = max(1, _WORKING_FLOATS // _floats_of_a_sample(model, stacks[0].inputs[0, :1]))

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
            gradients[at], values[at] = self._in_pieces(x[at], inputs, targets)
        return values, gradients

    def _in_pieces(self, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients (b, p) and values (b,), from as many samples at a time as memory allows: means of means."""
        samples = inputs.shape[1]
        pieces = -(-samples * len(x) // self._at_once)
        if pieces <= 1:
            result: tuple[Tensor, Tensor] = self._together(x, inputs, targets)
            return result
        gradients, values = torch.zeros_like(x), x.new_zeros(len(x))
        for part in torch.arange(samples, device=x.device).tensor_split(min(pieces, samples)):
            piece = slice(int(part[0]), int(part[-1]) + 1)
            more, value = self._together(x, inputs[:, piece], targets[:, piece])
            gradients.add_(more, alpha=len(part) / samples)
            values.add_(value, alpha=len(part) / samples)
        return gradients, values


def _in_turn(each: Callable[..., Any]) -> Callable[..., Any]:
    """What vmap would do, one client after another."""

    def together(x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        results = [each(*one) for one in zip(x, inputs, targets, strict=True)]
        return torch.stack([gradient for gradient, _ in results]), torch.stack([value for _, value in results])

    return together


def _floats_of_a_sample(model: nn.Module, sample: Tensor) -> int:
    """How many numbers the layers of the model give for one sample (1, ...)."""
    count = sample.numel()

    def add(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal count
        count += output.numel() if isinstance(output, Tensor) else 0

    hooks = [module.register_forward_hook(add) for module in model.modules() if not list(module.children())]
    with torch.no_grad():
        model(sample)
    for hook in hooks:
        hook.remove()
    return count
