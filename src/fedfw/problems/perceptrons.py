"""Perceptrons, which are plain linear layers with activations between them: all clients' gradients
in batched products.

With H_0 the samples, Z_k = W_k H_{k-1} + b_k, H_k = phi(Z_k), and R_k the derivative of the loss by
Z_k,

    gradient of W_k = R_k H_{k-1}',   gradient of b_k = R_k 1,   R_{k-1} = (W_k' R_k) phi'(Z_{k-1}).

torch.func finds the same for any module, with more calls and copies. Samples lie along the last
axis, as in `linear`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedfw.problems.base import Shapes
from fedfw.problems.known_losses import KnownLoss
from fedfw.problems.scores import Derivative, aligned, closed_form, is_plain, scores_of
from fedfw.problems.stacks import Stack


class Activation(NamedTuple):
    """A function phi of each number by itself."""

    apply: Callable[[Tensor], Tensor]
    """phi(Z), which overwrites Z."""
    back: Callable[[Tensor, Tensor], Tensor]
    """The derivative of the loss by Z, from the one by H = phi(Z) and from H itself."""


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(
        torch.relu_, lambda slopes, H: torch.ops.aten.threshold_backward(slopes, H, 0)
    ),
    nn.Tanh: Activation(torch.tanh_, torch.ops.aten.tanh_backward),
    nn.Sigmoid: Activation(torch.sigmoid_, torch.ops.aten.sigmoid_backward),
}


class Perceptron:
    """Gradients and losses of many clients of a perceptron.

    Parameters
    ----------
    layers : list of nn.Linear
        Its linear layers, whose sizes are looked at.
    activations : list of Activation
        Between them.
    derivative : callable
        Of the loss by the last layer's scores.
    """

    def __init__(
        self, layers: list[nn.Linear], activations: list[Activation], derivative: Derivative
    ) -> None:
        """Note the layers' shapes and lengths in the flat vector of parameters."""
        self._shapes = [(*layer.weight.shape, layer.bias is not None) for layer in layers]
        self._lengths = [p.numel() for layer in layers for p in layer.parameters()]
        self._activations = activations
        self._derivative = derivative

    @classmethod
    def of(
        cls, model: nn.Module, shapes: Shapes, known: KnownLoss | None, stacks: list[Stack]
    ) -> Perceptron | None:
        """Return the model as a perceptron; None for other models, losses without a closed form,
        and samples that are not vectors.
        """
        derivative = closed_form(known, stacks[0].targets[0])
        has_vectors = all(stack.inputs.ndim == 3 for stack in stacks)
        if (
            derivative is None
            or not has_vectors
            or not isinstance(model, nn.Sequential)
            or not is_plain(model, nn.Sequential)
        ):
            return None
        modules = list(model)
        # Linear layers alternate with activations, and begin and end.
        layers = [
            module
            for module in modules[::2]
            if isinstance(module, nn.Linear) and is_plain(module, nn.Linear)
        ]
        activations = [type(module) for module in modules[1::2] if is_plain(module, type(module))]
        complete = len(layers) == len(activations) + 1 and len(layers) + len(activations) == len(
            modules
        )
        has_other_parameters = any(module._parameters for module in (model, *modules[1::2]))
        if not complete or has_other_parameters or not ACTIVATIONS.keys() >= set(activations):
            return None
        if list(shapes) != [name for name, _ in model.named_parameters(remove_duplicate=False)]:
            return None  # some are not trained, or a layer is there twice
        return cls(layers, [ACTIVATIONS[kind] for kind in activations], derivative)

    def __call__(
        self, x: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return gradients (b, p) and losses (b,) at x (b, p), of samples (b, m, f) with their
        shares (b, m) in the mean.
        """
        # Once more without autocast: products are in the dtype of x.
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self(x, inputs, targets, shares)
        pieces = iter(torch.split_with_sizes(x, self._lengths, 1))
        outputs = [inputs.mT]  # H_0, H_1, ..., and the scores
        weights = []
        for (c, f, bias), activation in zip(self._shapes, [*self._activations, None], strict=True):
            weights.append(aligned(next(pieces).reshape(len(x), c, f)))
            Z = scores_of(weights[-1], next(pieces).unsqueeze(2) if bias else None, outputs[-1].mT)
            outputs.append(activation.apply(Z) if activation else Z)
        losses, R = self._derivative(outputs.pop(), targets)
        R = R.mul_(shares.unsqueeze(1))
        gradients = x.new_empty(x.shape)
        # Filled from the last layer to the first: a layer's bias lies behind its weights.
        parts_of_gradient = list(torch.split_with_sizes(gradients, self._lengths, 1))
        for k in range(len(weights) - 1, -1, -1):
            _, _, has_bias = self._shapes[k]
            if has_bias:
                torch.sum(R, 2, out=parts_of_gradient.pop())
            torch.bmm(aligned(R), outputs[k].mT, out=parts_of_gradient.pop().view_as(weights[k]))
            if k:
                R = self._activations[k - 1].back(torch.bmm(weights[k].mT, R), outputs[k])
        return gradients, (losses * shares).sum(1)
