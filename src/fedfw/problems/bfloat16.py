"""Gradients in bfloat16 on a GPU: compiled convolutions, and those of few channels as
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
    """Return a function of a client's point and samples that gives the gradient and the value, as
    torch.func.grad_and_value would, by kernels compiled for ``value``.
    """
    compiled_value = torch.compile(value, dynamic=False)

    def gradient_and_value(x: Tensor, inputs: Tensor, *rest: Tensor) -> Pair:
        """Return the gradient and the loss of one client, by the compiled function."""
        x = x.detach().requires_grad_()
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        loss = compiled_value(x, inputs, *rest)
        (gradient,) = torch.autograd.grad(loss, x)
        return gradient, loss.detach()

    return gradient_and_value


class _AsProduct(nn.Conv2d):
    """A convolution as one product with all patches of the images, where these are data."""

    def forward(self, images: Tensor) -> Tensor:
        """Convolve as one matrix product over all patches, padded to a multiple of the width that
        fast kernels need.
        """
        # With a gradient by the images, patches that overlap would be summed in any order.
        if images.ndim != 4 or images.requires_grad:
            return super().forward(images)
        kernel_rows, kernel_columns = self.kernel_size
        row_stride, column_stride = self.stride
        row_padding, column_padding = (int(width) for width in self.padding)
        patches = (
            nnf.pad(images, (column_padding, column_padding, row_padding, row_padding))
            .unfold(2, kernel_rows, row_stride)
            .unfold(3, kernel_columns, column_stride)
        )
        m, _, rows, columns, _, _ = patches.shape
        flat = patches.permute(0, 2, 3, 1, 4, 5).reshape(m * rows * columns, -1)
        # Zeros behind the entries of a patch, up to a multiple of _TOGETHER.
        padding = 0, -flat.shape[1] % _TOGETHER
        outputs = nnf.linear(
            nnf.pad(flat, padding), nnf.pad(self.weight.flatten(1), padding), self.bias
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
