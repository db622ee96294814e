"""The k leading singular pairs of a stack of matrices from their small Gram matrices, with proofs;
and an upper bound on the spectral norm from matrix products alone, which every device does fast.

Below, A is a matrix with m rows and n >= m columns (a taller one is transposed), ' denotes the
transpose, ||.|| is the largest singular value and ||.||_F the Frobenius norm. sigma_1 >= sigma_2 >=
... are the singular values of A. Among all S = UV' with ||U|| <= 1 and ||V|| <= 1, where U and V
have k columns, <A, S> is at most sigma_1 + ... + sigma_k.

Eigenvalues l and eigenvectors W of AA' are computed in float64, which is much faster than a
singular value decomposition of A where n is large. Whatever they are, and for l >= 0 in descending
order, let theta = ||W'W - I||_F and rho = ||AA' - W diag(l) W'||_F. Then ||W||^2 <= 1 + theta, and
by the theorems of Weyl and of Ostrowski

    sigma_i^2  <=  (1 + theta) l_i + rho     for each i,

which bounds sigma_1 + ... + sigma_k from above. The answer is UV'. U has the first k columns of W
over sqrt(1 + theta), so that ||U|| <= 1. V has those of A'W over sqrt(l_i + phi), where phi is so
small that it costs little of the tolerance and so large that columns of nearly vanishing singular
values become small instead of wrong. Where the largest row sum of |V'V| is above 1, V is divided by
its square root, which bounds ||V||.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfw.linalg.polar import LEAST_TOL, slack
from fedfw.linalg.singular import normalised
from fedfw.linalg.stacks import mended, one_by_one

_EPS = torch.finfo(torch.float64).eps
# avoids a division of zero by zero; the entries of matrices that are not zero are about 1
_TINY = 1e-200


@dataclass(frozen=True)
class Leading:
    """For each of n matrices A, k left and right vectors that almost reach its k largest singular
    values. In float64.

    Parameters
    ----------
    u : Tensor
        Left vectors, of shape (n, rows, k); the singular values of this matrix are at most 1.
    v : Tensor
        Right vectors, of shape (n, columns, k); the singular values of this matrix are at most 1.
    value : Tensor
        ``<A, uv'>``, of shape (n,).
    upper : Tensor
        A proven upper bound on the sum of the k largest singular values of A, of shape (n,).

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.leading import leading_pairs
    >>> found = leading_pairs(torch.diag(torch.tensor([3.0, 1.0, 2.0]))[None], 2, tol=1e-3)
    >>> bool(found.value <= 5), bool(found.upper >= 5), bool(found.error <= 1e-3)
    (True, True, True)
    """

    u: Tensor
    v: Tensor
    value: Tensor
    upper: Tensor

    @property
    def error(self) -> Tensor:
        """Return a proven upper bound on the relative error of ``value``, of shape (n,)."""
        return torch.where(self.upper == 0, 0.0, (self.upper - self.value) / self.upper)


def leading_pairs(g: Tensor, k: int, tol: float | None = None) -> Leading:
    """Return the k leading singular pairs of each matrix of a stack, or something as good up to a
    relative error.

    Parameters
    ----------
    g : Tensor
        Shape (n, rows, columns), float32 or float64; finite.
    k : int
        From 1 to the smaller side.
    tol : float, optional
        The largest relative error of ``<g, uv'>`` against the sum of the k largest singular values.
        Without it, and below ``LEAST_TOL``, the answer comes from a singular value decomposition,
        and so it does for those matrices whose error could not be proven to be at most ``tol``.

    Returns
    -------
    Leading
        The vectors, their values and upper bounds.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.leading import leading_pairs
    >>> found = leading_pairs(torch.diag(torch.tensor([3.0, 1.0, 2.0]))[None], 2, tol=1e-3)
    >>> ((found.u @ found.v.mT).round(decimals=3) + 0.0).tolist()
    [[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]
    """
    if g.shape[1] > g.shape[2]:
        pairs = leading_pairs(g.mT, k, tol)
        return replace(pairs, u=pairs.v, v=pairs.u)
    return one_by_one(lambda stack: _leading_pairs(stack, k, tol), g)


def _leading_pairs(g: Tensor, k: int, tol: float | None) -> Leading:
    """Return the k leading pairs of matrices (n, rows, columns) with rows <= columns: from Gram
    matrices where their error is proven to be at most ``tol``, otherwise from decompositions.
    """
    g, size = normalised(g)
    a = g.double()
    if tol is None or tol < LEAST_TOL:
        pairs = _by_svd(a, k)
    else:
        candidates = _by_gram(a, k, tol)
        pairs = mended(candidates, candidates.error <= tol, lambda bad: _by_svd(a[bad], k))
    return replace(pairs, value=pairs.value * size, upper=pairs.upper * size)


def _by_svd(a: Tensor, k: int) -> Leading:
    """Return the k leading pairs from a singular value decomposition, shrunk so that rounding
    errors leave the singular values of U and of V at most 1.
    """
    allowed = slack(*a.shape[1:])
    u, sigma, vh = torch.linalg.svd(a, full_matrices=False)
    total = sigma[:, :k].sum(1)
    shrunk = 1 - allowed
    return Leading(
        u[:, :, :k] * shrunk,
        vh[:, :k].mT * shrunk,
        total * shrunk**2,
        total + allowed * sigma[:, 0],
    )


def _by_gram(a: Tensor, k: int, tol: float) -> Leading:
    """Return the k leading pairs from eigenvalues l and eigenvectors W of AA', and the upper bound
    sum over i <= k of sqrt((1 + theta) l_i + rho), with theta = |W'W - I|_F and rho = |AA' - W
    diag(l) W'|_F; terms with _EPS bound the rounding errors.
    """
    m, n = a.shape[1:]
    gram = a @ a.mT
    values, vectors = torch.linalg.eigh(gram)
    values = values.flip(1).clamp(min=0)  # a Gram matrix has none below 0 but for rounding
    vectors = vectors.flip(2)
    identity = torch.eye(m, dtype=a.dtype, device=a.device)
    theta = torch.linalg.matrix_norm(vectors.mT @ vectors - identity) + 2 * m * (m + 2) * _EPS
    rho = torch.linalg.matrix_norm(
        torch.baddbmm(gram, vectors * values.unsqueeze(1), vectors.mT, beta=-1)
    )
    # ||A||_F^2 plus an upper bound on the norm of diag(l), to which rounding errors are relative.
    sizes = gram.diagonal(dim1=1, dim2=2).sum(1) + values.sum(1)
    rho = rho + (n + 2 * (m + 2) * math.sqrt(m)) * _EPS * sizes
    upper = ((1 + theta)[:, None] * values[:, :k] + rho[:, None]).sqrt().sum(1) * (1 + m * n * _EPS)
    shrunk = 1 - slack(m, n)
    u = vectors[:, :, :k] * (shrunk / (1 + theta).sqrt())[:, None, None]
    # Added to l_i: columns of nearly vanishing singular values become small instead of wrong, at
    # the cost of a small part of the tolerance.
    phi = values[:, :1] * (tol / (8 * k)) ** 2
    v = (a.mT @ vectors[:, :, :k]) / ((values[:, :k] + phi).sqrt() + _TINY).unsqueeze(1)
    # The largest row sum of |V'V| bounds ||V||^2.
    row_sums = (v.mT @ v).abs().sum(2).amax(1) + n * k * _EPS * v.square().sum((1, 2))
    v = v * (shrunk / row_sums.clamp(min=1).sqrt())[:, None, None]
    return Leading(u, v, ((a.mT @ u) * v).sum((1, 2)), upper)


_LOOSENESS = 0.002
"""The distance of the bound above the largest singular value, relative to it, at most."""


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
    >>> from fedfw.linalg.leading import spectral_bound
    >>> 2.0 <= float(spectral_bound(torch.diag(torch.tensor([1.0, -2.0, 2.0]))[None])) <= 2.02
    True
    """
    a, size = normalised(matrices.double())
    if a.shape[1] > a.shape[2]:
        a = a.mT
    k, length = a.shape[1:]
    # k^(1/(2q)) <= exp(2 _LOOSENESS) with q = 2^squarings; 1e-9 stands in for log(1) = 0.
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
