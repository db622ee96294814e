"""Proven upper bounds on the norms of matrices and convolutions.

A power iteration is not used, because it approaches a norm from below and so proves nothing. A
convolution is bounded as the operator that it is, whatever the size of the image. Without a border
it is an infinite convolution, and with zero padding it is a compression of one: the image is
continued by zeros, and only some outputs are looked at, neither of which makes anything longer.
With stride s, the pixels x[s q + r] for r = 0, ..., s - 1 are taken as channels of their own (an
isometry), on which the convolution has stride 1. The norm of an infinite convolution of stride 1
with taps K_j is the supremum over all frequencies t of the largest singular value of its *symbol*

    A(t) = sum over j of K_j exp(i <j, t>),       j in {0, ..., k - 1} along each axis.

It is found on a grid of N frequencies an axis, and divided by cos(pi (k - 1) / (2 N)) an axis,
which makes the largest value on the grid an upper bound on the supremum. Proof: let S be the
supremum of |A(., t2)| for a fixed t2, taken at t0, and u, v unit vectors with u* A(t0, t2) v = S.
Then f(s) = Re u* A(2 s, t2) v exp(-i (k - 1) (s - t0 / 2)) is a real trigonometric polynomial in s
of degree n = k - 1, |f| <= S and f(t0 / 2) = S. By a lemma of M. Riesz, f(s) >= S cos(n (s - t0 /
2)) for |s - t0 / 2| <= pi / n (otherwise S cos - f had more zeros than its degree allows). The grid
has a frequency t within pi / N of t0, so |A(t, t2)| >= f(t / 2) >= S cos(n pi / (2 N)). With t2
where the supremum over both axes is taken and t fixed on the grid, the same argument along the
second axis moves t2 to the grid, too.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FINENESS = 16
"""Grid points an axis for each degree of the symbol: the bound is then within 1 % of the supremum.
"""


def matrix_bound(matrices: Tensor) -> float:
    """Return an upper bound on the largest singular value of all matrices of a stack; for small
    matrices it is about 1e-12 above it.

    Parameters
    ----------
    matrices : Tensor
        (..., rows, columns), real or complex, float64, finite, with entries that are neither huge
        nor tiny.

    Notes
    -----
    The largest eigenvalue of the Gram matrix is computed with an error of at most 4 rows columns
    eps times itself: its entries are sums of ``columns`` products, and the eigenvalue solver is
    backward stable. That is added.

    Examples
    --------
    >>> import torch
    >>> round(matrix_bound(torch.diag(torch.tensor([3.0, -5.0], dtype=torch.float64))), 9)
    5.0
    """
    rows, columns = matrices.shape[-2:]
    if rows <= columns:
        gram = matrices @ matrices.mH
    else:
        gram = matrices.mH @ matrices
    largest = max(0.0, float(torch.linalg.eigvalsh(gram)[..., -1].max()))
    rounding = 4 * rows * columns * torch.finfo(torch.float64).eps
    return math.sqrt(largest * (1 + rounding)) * (1 + 1e-12)  # for the root's rounding


def shared_windows(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> int:
    """Return how many windows of a sliding kernel an input pixel lies in, at most.

    Along an axis, output o looks at pixel p by tap j where ``p = s o + d j``; j is then known
    modulo s / gcd(s, d), and at most ceil(k gcd(s, d) / s) of the k taps are left.

    Parameters
    ----------
    kernel, stride, dilation : sequence of int
        One number an axis.

    Examples
    --------
    >>> shared_windows((4, 4), (2, 2), (1, 1)), shared_windows((3, 3), (2, 1), (1, 1))
    (4, 6)
    """
    windows = (
        -(-k * math.gcd(s, d) // s) for k, s, d in zip(kernel, stride, dilation, strict=True)
    )
    return math.prod(windows)


def convolution_bound(
    kernel: Tensor,
    stride: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> float:
    """Return an upper bound on the l2 operator norm of a convolution, for images of any size, with
    any zero padding.

    Parameters
    ----------
    kernel : Tensor
        (out, in / groups, height, width), finite.
    stride, dilation : sequence of int
        One number an axis.
    groups : int
        As for `torch.nn.Conv2d`.

    Notes
    -----
    It is the smaller of two bounds: that of the symbol, which is within 1 % of the norm for large
    images, and ``sqrt(m) ||K||`` with the flattened kernel K (out x in height width) and the
    number m of windows in which a pixel lies. For the outputs y_o = K w_o of the windows w_o, the
    sum of ||y_o||^2 is at most ||K||^2 times the sum of ||w_o||^2, in which every pixel is counted
    at most m times. Groups are convolutions beside each other.

    Examples
    --------
    >>> import torch
    >>> round(convolution_bound(torch.ones(1, 1, 3, 3) / 9), 2)  # a mean keeps a constant image
    1.0
    """
    kernel = kernel.detach().double()
    size = float(kernel.abs().max())
    if size == 0:
        return 0.0
    grouped = (kernel / size).reshape(groups, -1, *kernel.shape[1:])
    flat = math.sqrt(shared_windows(kernel.shape[2:], stride, dilation)) * matrix_bound(
        grouped.flatten(3).flatten(2)
    )
    return size * min(flat * (1 + 1e-12), _supremum(_phases(grouped, stride, dilation)))


def _phases(kernel: Tensor, stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """Return the kernel (g, out, in s s, h', w') of a convolution without stride and dilation that
    has the norm of the one with kernel (g, out, in, h, w): the s x s phases of the pixels modulo
    the stride become channels.
    """
    # Common factors of stride and dilation are divided out: a window only reads pixels that are
    # multiples of gcd(s, d) apart. What is left of a dilation without stride splits the pixels into
    # classes that never share a window, each with the same kernel: it is left out.
    shared = [math.gcd(s, d) for s, d in zip(stride, dilation, strict=True)]
    strides = [s // common for s, common in zip(stride, shared, strict=True)]
    spacing = [
        d // common if s > 1 else 1 for s, d, common in zip(strides, dilation, shared, strict=True)
    ]
    lengths = [d * (k - 1) + 1 for d, k in zip(spacing, kernel.shape[3:], strict=True)]
    # ceil(length / s): the taps of a phase.
    taps = [-(-length // s) for length, s in zip(lengths, strides, strict=True)]
    spread = kernel.new_zeros(
        *kernel.shape[:3], *(t * s for t, s in zip(taps, strides, strict=True))
    )
    spread[..., : lengths[0] : spacing[0], : lengths[1] : spacing[1]] = kernel
    split = spread.reshape(*kernel.shape[:3], taps[0], strides[0], taps[1], strides[1])
    return split.permute(0, 1, 2, 4, 6, 3, 5).flatten(2, 4)


def _supremum(kernel: Tensor) -> float:
    """Return an upper bound on the largest singular value, over all frequencies (s, t), of the
    symbol sum over taps (a, b) of K[..., a, b] exp(i (a s + b t)) of a kernel (g, out, in, h, w).

    It is computed on a grid; between its points the symbol, a trigonometric polynomial, is at most
    1 / cos(pi / (2 FINENESS)) times as large along an axis.
    """
    grids = [max(1, FINENESS * (taps - 1)) for taps in kernel.shape[3:]]
    down, across = (
        torch.exp(
            2j * math.pi / grid * torch.outer(torch.arange(grid), torch.arange(taps)).double()
        ).to(kernel.device)
        for grid, taps in zip(grids, kernel.shape[3:], strict=True)
    )
    largest = 0.0
    taps = kernel.to(down.dtype)
    for phase in down[: grids[0] // 2 + 1]:  # at -t the symbol is the complex conjugate
        row = torch.einsum("goihw,h->goiw", taps, phase)
        largest = max(largest, matrix_bound(torch.einsum("goiw,fw->fgoi", row, across)))
    # An axis with a single tap does not depend on the frequency.
    between = [math.cos(math.pi / (2 * FINENESS)) for side in kernel.shape[3:] if side > 1]
    return largest / math.prod(between) * (1 + 1e-12)
