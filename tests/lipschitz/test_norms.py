"""Bounds on the norms of matrices and convolutions against the norms themselves."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from fedfw.lipschitz.norms import convolution_bound, matrix_bound, shared_windows


def operator_norm(layer: nn.Module, channels: int, side: int) -> float:
    """The largest singular value of the matrix of a linear layer, from its values at the unit images.

    From the smaller Gram matrix, of which it is known to some 1e-15, in a fraction of the time of a decomposition.
    """
    units = torch.eye(channels * side * side, dtype=torch.float64).reshape(-1, channels, side, side)
    with torch.no_grad():
        columns: Tensor = layer(units).flatten(1)
    gram = columns @ columns.T if len(columns) <= columns.shape[1] else columns.T @ columns
    return math.sqrt(float(torch.linalg.eigvalsh(gram)[-1]))


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (3, 7), (4, 6, 5)])
def test_a_matrix(shape: tuple[int, ...]) -> None:
    for seed in range(20):
        matrices = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        exact = float(torch.linalg.svdvals(matrices)[..., 0].max())
        assert exact <= matrix_bound(matrices) <= exact * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("stride", "dilation"), list(itertools.product((1, 2, 3), (1, 2))))
def test_the_bound_of_a_convolution_is_above_its_norm_and_not_far(
    stride: int, dilation: int, dtype: torch.dtype
) -> None:
    side = 10
    torch.manual_seed(stride)
    for kernel, padding, groups in itertools.product(((3, 3), (4, 2), (1, 1)), (0, 2), (1, 2)):
        layer = nn.Conv2d(
            2, 4, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=False, dtype=dtype
        )
        exact = operator_norm(layer.double(), 2, side)
        bound = convolution_bound(layer.weight, (stride,) * 2, (dilation,) * 2, groups)
        assert exact <= bound
        if padding == 2 and dilation == 1:  # small images without a border are far from infinite ones
            assert bound <= 1.3 * exact


@pytest.mark.parametrize("stride", [1, 2])
def test_the_bound_is_reached_by_large_images(stride: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 2, 3, stride=stride, padding=1, bias=False, dtype=torch.float64)
    exact, bound = operator_norm(layer, 1, 32), convolution_bound(layer.weight, (stride, stride))
    assert exact <= bound <= 1.03 * exact


@pytest.mark.parametrize("frequency", [0.0, math.pi / 48, 0.3, 1.0, 2.5])
def test_frequencies_between_those_of_the_grid_count(frequency: float) -> None:
    """Four taps that turn by one angle after another add up to 4 at that frequency and nowhere to more."""
    angles = frequency * torch.arange(4, dtype=torch.float64)
    turns = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()]).reshape(2, 2, 1, 4)
    assert 4.0 <= convolution_bound(turns) <= 4.0 * 1.01


def test_the_flattened_kernel_bounds_it_too() -> None:
    """With its norm 1 the operator's is at most sqrt(m): the radii of `LipschitzNet` rest on that."""
    for kernel, stride in (((4, 4), (2, 2)), ((3, 3), (1, 1)), ((5, 3), (2, 3))):
        flat = torch.linalg.qr(torch.randn(2 * math.prod(kernel), 4, dtype=torch.float64)).Q.T
        bound = convolution_bound(flat.reshape(4, 2, *kernel), stride)
        assert bound <= math.sqrt(shared_windows(kernel, stride, (1, 1))) * (1 + 1e-9)


def test_windows_of_a_pixel_are_counted() -> None:
    for kernel, stride, dilation in itertools.product((1, 2, 3, 5), (1, 2, 3, 4), (1, 2, 3)):
        taps = {j * dilation for j in range(kernel)}
        most = max(sum((pixel - tap) % stride == 0 for tap in taps) for pixel in range(100, 100 + stride))
        assert shared_windows((kernel,), (stride,), (dilation,)) == most


def test_zero_and_tiny_kernels() -> None:
    assert convolution_bound(torch.zeros(2, 3, 3, 3)) == 0.0
    tiny = torch.full((1, 1, 2, 2), 1e-200, dtype=torch.float64)  # its squares are zero in float64
    assert convolution_bound(tiny) == pytest.approx(4e-200, rel=0.02)
