"""Proven upper bounds on norms of matrices, made of products of matrices alone, which every device
does fast.
"""

import math

import torch
from torch import Tensor

from fedfw.linalg.singular import normalised

_LOOSENESS = 0.002
"""How far above the largest singular value the bound may lie, relative to it."""


def spectral_bound(matrices: Tensor) -> Tensor:
    """Return an upper bound on the largest singular value of each matrix, at most 0.2 % above it.

    Parameters
    ----------
    matrices : Tensor
        Shape (n, rows, columns), finite.

    Returns
    -------
    Tensor
        Float64, of shape (n,).

    Notes
    -----
    For the Gram matrix G = A A' on the smaller side k, sigma^2 is its largest eigenvalue, which is
    at most ``||G^q||_F^(1/q)`` and that at most k^(1/(2q)) times as large. G^q comes from repeated
    squaring; each square is divided by its norm, whose logarithm is added up. In float64 a product
    over length l changes a positive matrix by at most ``l eps`` times its squared Frobenius norm,
    which is at most k times its squared spectral norm. The bound is raised by what these errors can
    hide.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.norms import spectral_bound
    >>> 2.0 <= float(spectral_bound(torch.diag(torch.tensor([1.0, -2.0, 2.0]))[None])) <= 2.02
    True
    """
    a, size = normalised(matrices.double())
    if a.shape[1] > a.shape[2]:
        a = a.mT
    k, length = a.shape[1:]
    squarings = max(0, math.ceil(math.log2(max(math.log(k), 1e-9) / (4 * _LOOSENESS))))
    power = a @ a.mT
    logarithm = torch.zeros(len(a), dtype=torch.float64, device=a.device)
    for j in range(squarings + 1):
        if j:
            power = power @ power
        norm = torch.linalg.matrix_norm(power).clamp(min=torch.finfo(torch.float64).tiny)
        logarithm = logarithm + norm.log() / 2**j
        power = power / norm[:, None, None]
    slack = 1 + 2 * k * (length + 2 * k) * torch.finfo(torch.float64).eps
    return (logarithm / 2).exp() * size * slack
