"""Any module and loss: gradients for many clients through torch.func, clients of one size together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedfw.problems.base import ClientLosses, Shapes
from fedfw.problems.linear import LossFunction
from fedfw.problems.stacks import Samples, Stack, stack_clients

_WORKING_FLOATS = 2**27
"""How many numbers the layers' outputs may take at once (half a gigabyte, a few times over with their gradients).

A GPU gives them an eighth of its memory.
"""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_WORTH_A_TURN = 2000
"""Samples of a client from which a GPU convolves faster one client after another than with a kernel for each."""


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
        self,
        model: nn.Module,
        loss: LossFunction,
        shapes: Shapes,
        stacks: list[Stack],
        sizes: Tensor,
        sample_by_sample: bool = False,
    ) -> None:
        self._model, self._loss, self._shapes, self._stacks = model, loss, shapes, stacks
        self._sample_by_sample = sample_by_sample
        self.sizes, self.n = sizes, len(sizes)

        device = stacks[0].inputs.device

        def value(x: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor, alone: bool = False) -> Tensor:
            """The samples' losses with their shares in the mean (m,), which are equal where a loss is no known one."""
            parameters = unflatten(x, shapes)
            if alone and device.type == "cuda":  # the order of the axes that its convolutions are fastest in
                images = {name: p for name, p in parameters.items() if p.dim() == 4}
                parameters |= {name: p.contiguous(memory_format=torch.channels_last) for name, p in images.items()}
            outputs = functional_call(model, parameters, (inputs,))
            if not sample_by_sample:
                return loss(outputs, targets) * shares.sum()
            each: Tensor = loss(outputs, targets, reduction="none")  # type: ignore[call-arg]
            return (each.reshape(len(shares), -1).mean(1) * shares).sum()

        together: Callable[..., Any] = vmap(grad_and_value(value), randomness="different")
        self._together, self._in_turn = together, _in_turn(grad_and_value(partial(value, alone=True)))
        self._convolves = any(isinstance(module, _CONVOLUTIONS) for module in model.modules())
        self._at_once = max(1, _working_floats(device) // _floats_of_a_sample(model, stacks[0].inputs[0, :1]))

    @classmethod
    def of(cls, model: nn.Module, loss: LossFunction, shapes: Shapes, clients: list[Samples]) -> ModuleLosses:
        sizes = torch.tensor([len(x) for x, _ in clients])
        sample_by_sample = _has_sample_losses(model, loss, clients)
        return cls(model, loss, shapes, stack_clients(clients, may_pad=sample_by_sample), sizes, sample_by_sample)

    def to(self, device: torch.device) -> ModuleLosses:
        stacks = [stack.to(device) for stack in self._stacks]
        assert self.sizes is not None
        model = copy.deepcopy(self._model).to(device)
        return ModuleLosses(model, self._loss, self._shapes, stacks, self.sizes, self._sample_by_sample)

    def value_and_gradient(self, x: Tensor, who: Tensor, picks: Tensor | None) -> tuple[Tensor, Tensor]:
        values, gradients = x.new_empty(len(x)), torch.empty_like(x)
        for stack in self._stacks:
            at, rows = (who[:, None] == stack.who.to(who.device)).nonzero(as_tuple=True)
            if not len(at):
                continue
            inputs, targets = stack.inputs, stack.targets
            if len(rows) != len(stack.who) or not torch.equal(rows, torch.arange(len(rows), device=rows.device)):
                inputs, targets = inputs[rows], targets[rows]
            sizes = stack.sizes.to(x.device)[rows]
            if picks is not None:
                each = torch.arange(len(at), device=x.device)[:, None]
                inputs, targets = inputs[each, picks[at]], targets[each, picks[at]]
                sizes = torch.full_like(sizes, picks.shape[1])
            own = torch.arange(inputs.shape[1], device=x.device) < sizes[:, None]
            gradients[at], values[at] = self._in_pieces(x[at], inputs, targets, own.to(x.dtype) / sizes[:, None])
        return values, gradients

    def _in_pieces(self, x: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients (b, p) and values (b,), summed over as many samples at a time as memory allows."""
        samples = inputs.shape[1]
        # Convolutions with a kernel for each client are several times slower on a CPU than one client after another.
        if self._convolves and (x.device.type == "cpu" or samples >= _WORTH_A_TURN):
            together, at_once = self._in_turn, self._at_once * len(x)
        else:
            together, at_once = self._together, self._at_once
        pieces = -(-samples * len(x) // at_once)
        if pieces <= 1:
            result: tuple[Tensor, Tensor] = together(x, inputs, targets, shares)
            return result
        gradients, values = torch.zeros_like(x), x.new_zeros(len(x))
        for part in torch.arange(samples, device=x.device).tensor_split(min(pieces, samples)):
            piece = slice(int(part[0]), int(part[-1]) + 1)
            more, value = together(x, inputs[:, piece], targets[:, piece], shares[:, piece])
            gradients += more
            values += value
        return gradients, values


def _has_sample_losses(model: nn.Module, loss: LossFunction, clients: list[Samples]) -> bool:
    """Whether the loss is the mean of losses of single samples that can be asked for.

    Clients of different sizes can then be padded and share a call. That is so for class numbers with cross-entropy
    (none of them ignored) and for targets of the outputs' shape with the others.
    """
    inputs, targets = clients[0]
    if loss is nnf.cross_entropy and not targets.is_floating_point():
        return all(int(classes.min()) >= 0 for _, classes in clients)
    if loss not in (nnf.cross_entropy, nnf.mse_loss, nnf.binary_cross_entropy_with_logits):
        return False
    with torch.no_grad():
        return bool(model(inputs[:1]).shape == targets[:1].shape)


def _in_turn(each: Callable[..., Any]) -> Callable[..., Any]:
    """What vmap would do, one client after another."""

    def together(*stacks: Tensor) -> tuple[Tensor, Tensor]:
        results = [each(*one) for one in zip(*stacks, strict=True)]
        return torch.stack([gradient for gradient, _ in results]), torch.stack([value for _, value in results])

    return together


def _working_floats(device: torch.device) -> int:
    if device.type == "cuda":
        return max(_WORKING_FLOATS, torch.cuda.get_device_properties(device).total_memory // 32)
    return _WORKING_FLOATS


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
