"""Any module and loss: gradients for many clients, those of one size together, through torch.func
or in closed form.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedfw.graphs import Pair, Replayed, on_streams
from fedfw.problems.base import LOST_SQUARE, Shapes, clip_factors
from fedfw.problems.known_losses import KnownLoss, LossFunction, Per
from fedfw.problems.perceptrons import Perceptron
from fedfw.problems.stacks import Samples, Stack, StackedLosses, stack_clients

_WORKING_FLOATS = 2**27
"""The number of numbers that the layers' outputs may take at once (half a gigabyte, a few times
over with their gradients).

A GPU gives them an eighth of its memory.
"""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TOGETHER = 8
"""Channels, or numbers in a row, that a GPU's units for bfloat16 take together."""
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


class ModuleLosses(StackedLosses):
    """f_i(x) = loss(model_x(inputs_i), targets_i) on client i's samples.

    With a ``known`` loss clients of similar size are padded and share a call. With ``per`` "client"
    nothing is padded, and a client's samples are never split. With ``mixed`` layers multiply in
    bfloat16, and convolutions are compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        shapes: Shapes,
        stacks: list[Stack],
        sizes: Tensor,
        known: KnownLoss | None = None,
        per: Per = "sample",
        mixed: bool = False,
    ) -> None:
        """Keep model and stacks, and make the function that evaluates a stack of clients: one call
        for all, or one after another where that is faster.
        """
        super().__init__(stacks, sizes)
        self._model = model
        self._loss = loss
        self._shapes = shapes
        self._known = known
        self.per = per
        self.mixed = mixed
        self.weighs = known is not None and known.weighs(stacks[0].targets)
        # All stacks have samples of one shape, so that they can share a call.
        self._alike = (
            len({(stack.inputs.shape[2:], stack.targets.shape[2:]) for stack in stacks}) == 1
        )

        device = stacks[0].inputs.device
        mixed = mixed and device.type == "cuda"
        model = with_products(model) if mixed else model

        def value(x: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
            """Return the samples' losses with their shares in the mean (m,), which are equal where
            a loss is no known one.
            """
            with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
                outputs = functional_call(model, unflatten(x, shapes), (inputs,))
            outputs = outputs.to(x.dtype) if mixed else outputs
            if known is None:
                return loss(outputs, targets) * shares.sum()
            return (known.of_samples(outputs, targets) * shares).sum()

        # A kernel for each client makes convolutions several times slower than one client after
        # another. And a function of a whole client may look at its numbers, to compare or to select
        # some, which only works for one client.
        convolves = any(isinstance(module, _CONVOLUTIONS) for module in model.modules())
        self._one_by_one = convolves or (per == "client" and known is None)
        together: Callable[..., tuple[Tensor, Tensor]] = vmap(
            grad_and_value(value), randomness="different"
        )
        if self._one_by_one:
            together = _in_turn(
                _compiled(value) if mixed and convolves else grad_and_value(value), device
            )
        if not mixed:
            together = Perceptron.of(model, shapes, known, stacks) or together
        # x (m, p), inputs, targets, shares -> gradients (m, p), values (m,)
        self._together = Replayed(together) if device.type == "cuda" else together
        self._at_once = samples_at_once(model, stacks[0].inputs[0])

    @classmethod
    def of(
        cls,
        model: nn.Module,
        loss: LossFunction,
        shapes: Shapes,
        clients: list[Samples],
        known: KnownLoss | None = None,
        per: Per = "sample",
        mixed: bool = False,
    ) -> ModuleLosses:
        """Stack the clients' samples; losses that give a value a sample may be padded."""
        sizes = torch.tensor([len(x) for x, _ in clients])
        stacks = stack_clients(clients, may_pad=known is not None and per == "sample")
        return cls(model, loss, shapes, stacks, sizes, known, per, mixed)

    def __reduce__(self) -> tuple[type[ModuleLosses], tuple[Any, ...]]:
        """Return how to make the object anew."""
        # The functions that vmap made cannot be pickled: the copy makes its own.
        made_from = (
            self._model,
            self._loss,
            self._shapes,
            self._stacks,
            self.sizes,
            self._known,
            self.per,
            self.mixed,
        )
        return ModuleLosses, made_from

    def to(self, device: torch.device) -> ModuleLosses:
        """Return a copy on a device, with a model of its own."""
        stacks = [stack.to(device) for stack in self._stacks]
        model = copy.deepcopy(self._model).to(device)
        known = None if self._known is None else self._known.to(device)
        return ModuleLosses(
            model, self._loss, self._shapes, stacks, self.sizes, known, self.per, self.mixed
        )

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return losses (m,) and gradients (m, p) at each client's point, a stack of clients at a
        time.
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
        """Return places (b,) among the clients ``who`` with inputs (b, m, ...), targets (b, m, ...)
        and sizes (b,).

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
        yield from [tuple(map(torch.cat, zip(*drawn, strict=True)))] if self._alike else drawn

    def _shares(self, targets: Tensor, sizes: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (b, m): what samples with targets (b, m, ...) count in their client's mean, 0 for
        those beyond its size.
        """
        own = torch.arange(targets.shape[1], device=targets.device) < sizes[:, None]
        if self._known is None or not self.weighs:
            return own.to(dtype) / sizes[:, None]
        masses = self._known.masses(targets).to(dtype) * own
        shares = own / masses.sum(1, keepdim=True)
        # A minibatch of ignored samples alone has no gradient.
        return shares.where(shares.isfinite(), 0.0)

    @cached_property
    def _in_float64(self) -> ModuleLosses:
        """Return a copy whose model, loss and samples are in float64."""
        loss = self._loss
        if isinstance(loss, nn.Module):
            loss = copy.deepcopy(loss).double()
        stacks = [stack.in_float64() for stack in self._stacks]
        model = copy.deepcopy(self._model).double()
        return ModuleLosses(model, loss, self._shapes, stacks, self.sizes, self._known, self.per)

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        """Return each client's mean of clipped gradients of samples, so few samples at a time that
        their gradients fit in memory.
        """

        def loss_of_one(x: Tensor, sample: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(self._model, unflatten(x, self._shapes), (sample[None],))
            return (self._known or self._loss)(outputs, target[None])

        per_sample = vmap(vmap(grad_and_value(loss_of_one), (None, 0, 0)))
        gradients = torch.zeros_like(x, dtype=torch.float64)
        for stack, positions, rows in self.select(who):
            samples = stack.inputs.shape[1]
            own = torch.arange(samples, device=x.device) < stack.sizes.to(x.device)[rows][:, None]
            own = own if keep is None else own & keep[positions][:, :samples]
            pieces = -(-samples * len(positions) * x.shape[1] // _working_floats(x.device))
            for part in torch.arange(samples, device=x.device).tensor_split(min(pieces, samples)):
                found, losses = _of_samples(
                    per_sample,
                    x[positions],
                    stack.inputs[rows][:, part],
                    stack.targets[rows][:, part],
                )
                of_samples = found.double()
                del found  # the largest tensors here are samples x parameters
                factors = clip_factors(_norms(of_samples, norm), clip) * (
                    own[:, part] & losses.isfinite()
                )
                # 0 * NaN is NaN: what is not finite must not be multiplied either.
                of_samples.masked_fill_((factors <= 0).unsqueeze(2), 0.0)
                gradients[positions] += torch.einsum("bm,bmp->bp", factors, of_samples)
        return gradients / count[:, None]

    def _in_pieces(
        self, x: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return gradients (b, p) and values (b,), summed over as many samples at a time as memory
        allows.

        Where a client's samples belong together, as many clients at a time as memory allows, and at
        least one.
        """
        samples = inputs.shape[1]
        at_the_same_time = len(x)
        if self._one_by_one:
            at_the_same_time = min(_STREAMS, len(x)) if x.device.type == "cuda" else 1
        pieces = -(-samples * at_the_same_time // self._at_once)
        if pieces <= 1:
            gradients, values = self._together(x, inputs, targets, shares)
            return gradients, values
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
            more, value = self._together(x, inputs[:, piece], targets[:, piece], shares[:, piece])
            gradients += more
            values += value
        return gradients, values


_RAISED = (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError)


def _of_samples(
    each: Callable[..., tuple[Tensor, Tensor]], x: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return gradients (b, m, p) and losses (b, m) of m samples; NaN for one that raises an error.

    Some losses refuse a NaN (`BCELoss`), and a server chooses points at which one sample has it. A
    private run must not end by that. The other samples are evaluated in a stack of the same shape,
    so that their gradients have the same bits with and without that sample.
    """
    try:
        return each(x, inputs, targets)
    except _RAISED:
        if len(x) > 1:
            rows = [_of_samples(each, x[[i]], inputs[[i]], targets[[i]]) for i in range(len(x))]
            return torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows])
    samples = range(inputs.shape[1])
    fails = torch.tensor([_raises(each, x, inputs[:, [j]], targets[:, [j]]) for j in samples])
    fails = fails.to(x.device)
    if bool(fails.all()):
        # An error that has nothing to do with data is raised here, too.
        each(torch.zeros_like(x), torch.zeros_like(inputs), torch.zeros_like(targets))
        return x.new_zeros(1, len(samples), x.shape[1]), x.new_full((1, len(samples)), torch.nan)
    own = torch.arange(len(samples), device=x.device)
    stand_ins = torch.where(fails, own[~fails][0], own)
    found, losses = each(x, inputs[:, stand_ins], targets[:, stand_ins])
    return found, losses.masked_fill(fails, torch.nan)


def _raises(each: Callable[..., Any], *arguments: Tensor) -> bool:
    """Return whether a function raises an error."""
    try:
        each(*arguments)
    except _RAISED:
        return True
    return False


def _norms(gradients: Tensor, norm: str) -> Tensor:
    """Return the norms (b, m), linf or l2, of vectors (b, m, p) in float64."""
    if norm != "l2":
        return gradients.abs().amax(2)
    squares: Tensor = torch.linalg.vector_norm(gradients, dim=2).square()
    # What squares lose by underflow is added, so that no norm is too small.
    return (squares + gradients.shape[2] * LOST_SQUARE).sqrt()


def _in_turn(each: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Do what vmap would do, one client after another, or a few at the same time on a GPU."""
    of_all = (
        on_streams(each, _STREAMS)
        if device.type == "cuda"
        else lambda *stacks: list(map(each, *stacks))
    )

    def together(*stacks: Tensor) -> tuple[Tensor, Tensor]:
        results = of_all(*stacks)
        return torch.stack([gradient for gradient, _ in results]), torch.stack(
            [value for _, value in results]
        )

    return together


def _compiled(value: Callable[..., Tensor]) -> Callable[..., Pair]:
    """Do what torch.func.grad_and_value would do, by kernels that torch makes for the function."""
    made = torch.compile(value, dynamic=False)

    def each(x: Tensor, inputs: Tensor, *rest: Tensor) -> Pair:
        """Return the gradient and the loss of one client, by the compiled function."""
        x = x.detach().requires_grad_()
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        loss = made(x, inputs, *rest)
        (gradient,) = torch.autograd.grad(loss, x)
        return gradient, loss.detach()

    return each


class _AsProduct(nn.Conv2d):
    """A convolution as one product with all patches of the images, where these are data."""

    def forward(self, images: Tensor) -> Tensor:
        """Convolve as one matrix product over all patches, padded to a multiple of the width that
        fast kernels need.
        """
        if images.ndim != 4 or images.requires_grad:  # a gradient of patches is summed in any order
            return super().forward(images)
        high, wide = self.kernel_size
        down, right = self.stride
        above, beside = (int(width) for width in self.padding)
        patches = (
            nnf.pad(images, (beside, beside, above, above))
            .unfold(2, high, down)
            .unfold(3, wide, right)
        )
        m, _, rows, columns, _, _ = patches.shape
        flat = patches.permute(0, 2, 3, 1, 4, 5).reshape(m * rows * columns, -1)
        spare = 0, -flat.shape[1] % _TOGETHER
        outputs = nnf.linear(
            nnf.pad(flat, spare), nnf.pad(self.weight.flatten(1), spare), self.bias
        )
        return outputs.reshape(m, rows, columns, -1).permute(0, 3, 1, 2)


def with_products(model: nn.Module) -> nn.Module:
    """Return the model with convolutions of a few channels as products, for which cuDNN has no fast
    kernels in bfloat16.
    """
    model = copy.deepcopy(model)
    for module in model.modules():
        if type(module) is nn.Conv2d and _can_be_product(module):
            module.__class__ = _AsProduct
    return model


def _can_be_product(layer: nn.Conv2d) -> bool:
    """Return whether a convolution is plain, and has so few channels that a product is faster."""
    padded_as_here = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return (
        padded_as_here
        and layer.in_channels < _TOGETHER
        and layer.groups == 1
        and layer.dilation == (1, 1)
    )


def samples_at_once(model: nn.Module, inputs: Tensor) -> int:
    """Return how many samples such as inputs (m, ...) a model may be given at the same time."""
    return max(1, _working_floats(inputs.device) // _floats_of_a_sample(model, inputs[:2]))


def _working_floats(device: torch.device) -> int:
    if device.type == "cuda":
        return max(_WORKING_FLOATS, torch.cuda.get_device_properties(device).total_memory // 32)
    return _WORKING_FLOATS


def _floats_of_a_sample(model: nn.Module, samples: Tensor) -> int:
    """Return how many numbers the layers of the model give for a sample; tried on two (m, ...), as
    BatchNorm asks for.
    """
    count = samples.numel()

    def add(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal count
        count += output.numel() if isinstance(output, Tensor) else 0

    hooks = [
        module.register_forward_hook(add)
        for module in model.modules()
        if not list(module.children())
    ]
    with torch.no_grad():
        model(samples)
    for hook in hooks:
        hook.remove()
    return max(1, count // len(samples))
