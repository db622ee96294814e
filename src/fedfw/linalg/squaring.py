"""The leading eigenvector of a stack of small matrices by squaring them again and again, without a
look at a number.

A GPU can replay this as part of a CUDA graph, which an eigenvalue decomposition, whose success the
host has to look at, cannot be. Below, B is symmetric and positive semidefinite with m rows, and l_1
is its largest eigenvalue. The trace of B^N is at least l_1^N and at most m l_1^N. So its N-th root
is an upper bound on l_1, and with N = 2^40 it is too large by a factor of at most m^(1/N) < 1 +
1e-11 for m <= 128. The column of B^N with the largest diagonal entry is the leading eigenvector x.
Another eigenvalue l_i leaves a share of (l_i / l_1)^N in it, which costs x'Bx less than m l_1 / N
however near l_i is to l_1.
"""

import torch
from torch import Tensor

_SQUARINGS = 4
_TIMES = 10
"""After 4 squarings the matrix is divided by its trace, which is at least m^-16 then; that is done
10 times.
"""


def leading_vector(b: Tensor) -> tuple[Tensor, Tensor]:
    """Return a leading eigenvector of each matrix of a stack, and an upper bound on the largest
    eigenvalue.

    Parameters
    ----------
    b : Tensor
        Symmetric positive semidefinite matrices in float64, of shape (n, m, m); finite.

    Returns
    -------
    tuple of Tensor
        Vectors of shape (n, m), which are not normalised, and zero for a matrix of zeros; bounds of
        shape (n,).

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.squaring import leading_vector
    >>> vector, upper = leading_vector(
    ...     torch.diag(torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64))[None]
    ... )
    >>> (vector / vector.norm()).tolist(), round(float(upper), 9)
    ([[0.0, 1.0, 0.0]], 3.0)
    """
    m = b.shape[1]
    # With B_0 = B / trace, B_i is the 16th power of B_(i-1) over its trace; the logarithm of
    # trace(B_0^N)^(1/N), an upper bound on the largest eigenvalue of B_0, is added up.
    first_trace = _trace(b)
    b = b / torch.where(first_trace > 0, first_trace, 1.0)[:, None, None]
    logarithm = torch.zeros_like(first_trace)
    for i in range(_TIMES):
        for _ in range(_SQUARINGS):
            b = torch.bmm(b, b)
        trace = torch.where(first_trace > 0, _trace(b), 1.0)
        b = b / trace[:, None, None]
        logarithm.add_(trace.log_(), alpha=2.0 ** (-_SQUARINGS * (i + 1)))
    # A product rounds its entries by at most m eps ||B||_F^2, which is at most m^2 eps of l_1^2;
    # later ones count less.
    upper = first_trace * logarithm.exp_() * (1 + 4 * m * m * torch.finfo(b.dtype).eps)
    # B has nearly become xx' / |x|^2 for the leading eigenvector x: its column with the largest
    # diagonal entry is a multiple of x.
    column = b.diagonal(dim1=1, dim2=2).argmax(1)
    return b.gather(2, column[:, None, None].expand(-1, m, 1)).squeeze(2), upper


def _trace(b: Tensor) -> Tensor:
    return b.diagonal(dim1=1, dim2=2).sum(1)
