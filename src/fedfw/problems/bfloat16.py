"""What a GPU does for gradients in bfloat16: compiled convolutions, and those of few channels as
products.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.graphs import Pair

_TOGETHER = 8
"""Channels, or numbers in a row, that a GPU's units for bfloat16 take together."""


def compiled_gradient(value: Callable[..., Tensor]) -> Callable[..., Pair]:
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
