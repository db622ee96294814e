"""Any module and loss: gradients for many clients, those of one size together, through torch.func
or in closed form.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedfw.graphs import Replayed, on_streams
from fedfw.problems.adapters import remove_adapters
from fedfw.problems.base import Shapes
from fedfw.problems.bfloat16 import compiled_gradient, with_products
from fedfw.problems.clipping import clip_factors, gradients_of_samples, norms_of_samples
from fedfw.problems.known_losses import KnownLoss, LossFunction, Per
from fedfw.problems.perceptrons import Perceptron
from fedfw.problems.stacks import Samples, Stack, StackedLosses, stack_clients
from fedfw.sets.base import shapes_of

_WORKING_FLOATS = 2**27
"""The number of numbers that the layers' outputs may take at once (half a gigabyte, a few times
over with their gradients).

A GPU gives them an eighth of its memory.
"""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_STREAMS = 5
"""Clients that a GPU convolves for at the same time: more bring no speed."""


def unflatten(x: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Return a flat vector (p,) as named parameters."""
    # One split: the gradient of a slice is as long as x, for each parameter.
    pieces = torch.split(x, [prod(shape) for shape in shapes.values()])
    return {
        name: piece.reshape(shape)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def flatten(parameters: Sequence[Tensor]) -> Tensor:
    """Return parameters as one vector (p,), detached."""
    return torch.cat([p.detach().flatten() for p in parameters])


def with_parameters(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy of a model with parameters x, flat (p,) or in the shape of its only one."""
    model = copy.deepcopy(model)
    remove_adapters(model)
    model.load_state_dict(unflatten(x.detach().flatten(), shapes_of(model)), strict=False)
    return model


class ModelAndLoss(NamedTuple):
    """A model and a loss, which `ModuleLosses` evaluate on every client's samples."""

    model: nn.Module
    loss: LossFunction
    shapes: Shapes
    known: KnownLoss | None
    """The loss, where it is one of torch's; clients of similar size are then padded to share a
    call.
    """
    per: Per
    """With "client" nothing is padded, and a client's samples are never split."""
    mixed: bool
    """True if a GPU multiplies in bfloat16, and compiles convolutions."""


class ModuleLosses(StackedLosses):
    """f_i(x) = loss(model_x(inputs_i), targets_i) on client i's samples."""

    def __init__(self, stacks: list[Stack], sizes: Tensor, evaluated: ModelAndLoss) -> None:
        """Keep model and stacks, and make the function that evaluates a stack of clients: one call
        for all, or one after another where that is faster.
        """
        super().__init__(stacks, sizes)
        self._evaluated = evaluated
        model, loss, shapes, known, per, mixed = evaluated
        self.per = per
        self.weighs = known is not None and known.weighs(stacks[0].targets)
        # All stacks have samples of one shape, so that they can share a call.
        self._alike = (
            len({(stack.inputs.shape[2:], stack.targets.shape[2:]) for stack in stacks}) == 1
        )
        self._at_once = samples_at_once(model, stacks[0].inputs[0])

        device = stacks[0].inputs.device
        mixed = mixed and device.type == "cuda"
        model = with_products(model) if mixed else model

        def value(x: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
            """Return a client's loss at x (p,): the sum of its samples' losses times their shares
            (m,) in the mean.
            """
            with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
                outputs = functional_call(model, unflatten(x, shapes), (inputs,))
            outputs = outputs.to(x.dtype) if mixed else outputs
            # An unknown loss is already a mean; the shares of a piece of the samples sum to its
            # part.
            if known is None:
                return loss(outputs, targets) * shares.sum()
            return (known.of_samples(outputs, targets) * shares).sum()

        # A kernel for each client makes convolutions several times slower than one client after
        # another. And a function of a whole client may look at its numbers, to compare or to select
        # some, which only works for one client.
        convolves = any(isinstance(module, _CONVOLUTIONS) for module in model.modules())
        self._one_by_one = convolves or (per == "client" and known is None)
        together: Callable[..., tuple[Tensor, Tensor]]
        if self._one_by_one:
            alone = compiled_gradient if mixed and convolves else grad_and_value
            together = _in_turn(alone(value), device)
        else:
            together = vmap(grad_and_value(value), randomness="different")
        if not mixed:
            together = Perceptron.of(model, shapes, known, stacks) or together
        # x (m, p), inputs, targets, shares -> gradients (m, p), values (m,)
        self._together = Replayed(together) if device.type == "cuda" else together

    @classmethod
    def of(cls, clients: list[Samples], evaluated: ModelAndLoss) -> ModuleLosses:
        """Stack the clients' samples; losses that give a value a sample may be padded."""
        sizes = torch.tensor([len(x) for x, _ in clients])
        may_pad = evaluated.known is not None and evaluated.per == "sample"
        return cls(stack_clients(clients, may_pad), sizes, evaluated)

    def __reduce__(self) -> tuple[type[ModuleLosses], tuple[Any, ...]]:
        # The functions that vmap made cannot be pickled: the copy makes its own.
        return ModuleLosses, (self._stacks, self.sizes, self._evaluated)

    def on_stacks(self, stacks: list[Stack], sizes: Tensor) -> ModuleLosses:
        return ModuleLosses(stacks, sizes, self._evaluated)

    def to(self, device: torch.device) -> ModuleLosses:
        """Return a copy on a device, with a model of its own."""
        model, _, _, known, _, _ = self._evaluated
        moved = self._evaluated._replace(
            model=copy.deepcopy(model).to(device), known=known and known.to(device)
        )
        return ModuleLosses([stack.to(device) for stack in self._stacks], self.sizes, moved)

    @cached_property
    def _in_float64(self) -> ModuleLosses:
        """Return a copy whose model, loss and samples are in float64."""
        model, loss, *_ = self._evaluated
        if isinstance(loss, nn.Module):
            loss = copy.deepcopy(loss).double()
        exact = self._evaluated._replace(
            model=copy.deepcopy(model).double(), loss=loss, mixed=False
        )
        return ModuleLosses([stack.in_float64() for stack in self._stacks], self.sizes, exact)

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return losses (m,) and gradients (m, p) at the points x (m, p) of the clients ``who``, a
        stack of clients at a time.
        """
        if len(self.select(who)) == 1 and not x.is_cuda:
            # One call for all clients, in their order. Copies of x and of the gradients would cost
            # a sixth of a small MLP's round.
            _, inputs, targets, sizes = next(self._calls(who, picks))
            shares = self._shares(targets, sizes, x.dtype)
            gradients, values = self._in_pieces(x, inputs, targets, shares)
            # A gradient that is the same for all clients is a single row.
            return (values, gradients.contiguous())
        values = x.new_empty(len(x))
        gradients = torch.empty_like(x)
        for positions, inputs, targets, sizes in self._calls(who, picks):
            shares = self._shares(targets, sizes, x.dtype)
            gradients[positions], values[positions] = self._in_pieces(
                x[positions], inputs, targets, shares
            )
        return values, gradients

    def _calls(self, who: Tensor, picks: Tensor | None) -> Iterator[tuple[Tensor, ...]]:
        """Yield stacks of clients for one call each: their positions (b,) in ``who``, inputs (b, m,
        ...), targets (b, m, ...) and sizes (b,).

        Minibatches have one size, whatever the clients have, so that they are one call.
        """
        if picks is None:
            for stack, positions, rows in self.select(who):
                yield (
                    positions,
                    stack.inputs[rows],
                    stack.targets[rows],
                    stack.sizes.to(positions.device)[rows],
                )
            return
        drawn = []
        for stack, positions, rows in self.select(who):
            sizes = torch.full_like(positions, picks.shape[1])
            drawn.append((positions, *stack.picked(rows, picks[positions]), sizes))
        if self._alike:
            yield tuple(map(torch.cat, zip(*drawn, strict=True)))
        else:
            yield from drawn

    def _shares(self, targets: Tensor, sizes: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the shares (b, m) of samples with targets (b, m, ...) in their client's mean, 0
        for padding beyond its size.
        """
        is_sample = torch.arange(targets.shape[1], device=targets.device) < sizes[:, None]
        known = self._evaluated.known
        if known is None or not self.weighs:
            return is_sample.to(dtype) / sizes[:, None]
        masses = known.masses(targets).to(dtype) * is_sample
        shares = is_sample / masses.sum(1, keepdim=True)
        # A minibatch of ignored samples alone has no gradient.
        return shares.where(shares.isfinite(), 0.0)

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        """Return each client's sum of clipped gradients of samples, divided by ``count`` (m,), in
        float64 (m, p).
        """
        model, loss, shapes, known, _, _ = self._evaluated

        def loss_of_one(x: Tensor, sample: Tensor, target: Tensor) -> Tensor:
            """Return the loss of one sample at x (p,)."""
            outputs = functional_call(model, unflatten(x, shapes), (sample[None],))
            return (known or loss)(outputs, target[None])

        per_sample = vmap(vmap(grad_and_value(loss_of_one), (None, 0, 0)))
        gradients = torch.zeros_like(x, dtype=torch.float64)
        for stack, positions, rows in self.select(who):
            samples = stack.inputs.shape[1]
            is_sample = (
                torch.arange(samples, device=x.device) < stack.sizes.to(x.device)[rows][:, None]
            )
            is_sample = is_sample if keep is None else is_sample & keep[positions][:, :samples]
            # So few samples at a time that their gradients fit in memory.
            pieces = -(-samples * len(positions) * x.shape[1] // _working_floats(x.device))
            for part in torch.arange(samples, device=x.device).tensor_split(min(pieces, samples)):
                raw_gradients, losses = gradients_of_samples(
                    per_sample,
                    x[positions],
                    stack.inputs[rows][:, part],
                    stack.targets[rows][:, part],
                )
                sample_gradients = raw_gradients.double()
                del raw_gradients  # the largest tensors here are samples x parameters
                factors = clip_factors(norms_of_samples(sample_gradients, norm), clip) * (
                    is_sample[:, part] & losses.isfinite()
                )
                # 0 * NaN is NaN: what is not finite must not be multiplied either.
                sample_gradients.masked_fill_((factors <= 0).unsqueeze(2), 0.0)
                gradients[positions] += torch.einsum("bm,bmp->bp", factors, sample_gradients)
        return gradients / count[:, None]

    def _in_pieces(
        self, x: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return gradients (b, p) and values (b,) at x (b, p), summed over pieces of the samples
        that fit in memory.

        Where a client's samples belong together, as many clients at a time as memory allows, and at
        least one.
        """
        samples = inputs.shape[1]
        clients_at_once = len(x)
        if self._one_by_one:
            clients_at_once = min(_STREAMS, len(x)) if x.is_cuda else 1
        pieces = -(-samples * clients_at_once // self._at_once)
        if pieces <= 1:
            return self._together(x, inputs, targets, shares)
        gradients = torch.zeros_like(x)
        values = x.new_zeros(len(x))
        if self.per == "client":
            for rows in torch.arange(len(x), device=x.device).tensor_split(min(pieces, len(x))):
                gradients[rows], values[rows] = self._together(
                    x[rows], inputs[rows], targets[rows], shares[rows]
                )
            return gradients, values
        for part in torch.arange(samples, device=x.device).tensor_split(min(pieces, samples)):
            piece = slice(int(part[0]), int(part[-1]) + 1)
            piece_gradients, piece_values = self._together(
                x, inputs[:, piece], targets[:, piece], shares[:, piece]
            )
            gradients += piece_gradients
            values += piece_values
        return gradients, values


def _in_turn(each: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return a function of stacks that calls ``each`` for one client after another, or for a few at
    the same time on a GPU, and stacks the results, as vmap would.
    """
    of_all = on_streams(each, _STREAMS) if device.type == "cuda" else partial(map, each)

    def together(*stacks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients (b, p) and values (b,) of stacks of clients."""
        gradients, values = zip(*of_all(*stacks), strict=True)
        return torch.stack(gradients), torch.stack(values)

    return together


def samples_at_once(model: nn.Module, inputs: Tensor) -> int:
    """Return how many samples such as inputs (m, ...) a model may be given at the same time."""
    return max(1, _working_floats(inputs.device) // _floats_of_a_sample(model, inputs[:2]))


def _working_floats(device: torch.device) -> int:
    if device.type == "cuda":
        return max(_WORKING_FLOATS, torch.cuda.get_device_properties(device).total_memory // 32)
    return _WORKING_FLOATS


def _floats_of_a_sample(model: nn.Module, samples: Tensor) -> int:
    """Return how many numbers the inputs and the layers' outputs have for a sample, from a trial on
    two samples (m, ...), as BatchNorm asks for.
    """
    sizes = [samples.numel()]

    def add_size(module: nn.Module, inputs: Any, output: Any) -> None:
        """Note how many numbers a layer's output has."""
        if isinstance(output, Tensor):
            sizes.append(output.numel())

    hooks = [
        module.register_forward_hook(add_size)
        for module in model.modules()
        if not list(module.children())
    ]
    with torch.no_grad():
        model(samples)
    for hook in hooks:
        hook.remove()
    return max(1, sum(sizes) // len(samples))
