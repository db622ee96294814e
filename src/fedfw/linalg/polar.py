"""The polar factor of a stack of matrices by Newton-Schulz iterations, with proofs of what they
reached.

Below, A is a matrix with m rows and n >= m columns (a taller one is transposed), ' denotes the
transpose, u is 2^-53, ||.|| the largest singular value, ||.||_F the Frobenius norm and ||.||_* the
nuclear norm, which is the sum of the singular values. The polar factor of A = U diag(sigma) V' is
UV'. Among all S with ||S|| <= 1 it has the largest inner product with A, and <A, UV'> = ||A||_*.

The iterations are fast and unproven: they run in float32, where m and n are similar, and whatever
they return is a candidate X. Two facts, which hold for every X, are then established in float64.

The answer is inside. Let T = XX' and rho = ||T^2 - T||_F. An eigenvalue t of T that is larger than
1 has t^2 - t <= rho, so that rho <= 12 implies t <= 4, which is ||X|| <= 2. A cubic step maps a
singular value x of X to f(x) = x (3 - x^2) / 2, and |f(x)| <= 1 for 0 <= x <= 2. Hence S = (3X -
TX) / 2 has ||S|| <= 1 up to the rounding errors of two products, which are at most 8 m (m + n + 2)
u because ||X||_F^2 <= 4m. S is shrunk by twice that number, and what is rounded to a shorter
precision is shrunk further by `round_inside`. We ask for rho <= 11, which leaves room for the
rounding errors of rho itself: they are at most 3 m (m + n) t^2 u where t is the largest eigenvalue.

The answer is good. For every matrix L, A = LL'S + R with R = A - LL'S, and the triangle inequality
gives

    ||A||_*  <=  ||LL'||_* ||S|| + ||R||_*  <=  ||L||_F^2 + sqrt(m) ||R||_F,

since LL' is positive semidefinite and has the trace ||L||_F^2. With the exact S the matrix AS' is
positive semidefinite and AS'S = A. We take for L the Cholesky factor of the symmetric part of AS'
plus a small multiple of the identity; then the right-hand side is close to <A, S>, also where A has
a deficient rank. A Cholesky factorisation that breaks down makes the bound large or NaN, and not
wrong.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from fedfw.graphs import Replayed
from fedfw.linalg.singular import normalised
from fedfw.linalg.stacks import mended, one_by_one

# Iterations in float32 reach this relative error for all but nearly singular matrices. A smaller
# one is left to the singular value decomposition, which also is the faster of the two in float64 on
# a CPU.
LEAST_TOL = 2e-5
# Up to this smaller side a decomposition is faster on a CPU.
SVD_UP_TO = 48
# From this ratio of the sides on, iterating on the m x m matrix AA' in float64 is cheaper than on A
# in float32.
_WIDE = 2
_MARGIN = 1.001  # for rounding errors in the number by which a matrix is divided
_SHIFT = 1 / 64  # the part of the tolerance that is spent on making AS' positive definite
# keeps the Cholesky factor of a zero matrix finite; the entries of other matrices are about 1
_TINY = 1e-200

# Odd polynomials a x + b x^3 + c x^5, one a step. Each is the best approximation of the number 1 by
# such a polynomial on the interval that the steps before it map [1e-4, 1] to (Amsel, Persson, Musco
# and Gower, arXiv 2505.16932), made longer by 1 % at its upper end, so that rounding errors there
# do not grow. Together they map [1e-4, 1] to [1 - 1e-4, 1 + 1e-4], and [0, 1] to [0, 1 + 1e-4].
STEPS = (
    (8.351, -23.949, 17.597),
    (4.1305, -2.9054, 0.52363),
    (4.1136, -2.9012, 0.52424),
    (4.0459, -2.8843, 0.52685),
    (3.7652, -2.7593, 0.52409),
    (2.9182, -2.1454, 0.45712),
    (2.0486, -1.4161, 0.3816),
    (1.8759, -1.2501, 0.37423),
)


@dataclass(frozen=True)
class Polar:
    """A matrix S for each of n matrices A with which it has almost the largest inner product. All
    in float64.

    Parameters
    ----------
    s : Tensor
        Shape (n, rows, columns); its singular values are at most 1. `polar_factor` may
        round it.
    value : Tensor
        ``<A, s>``, of shape (n,).
    upper : Tensor
        A proven upper bound on the nuclear norm of A, and so on ``<A, s>`` for any such s, of shape
        (n,).

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.polar import polar_factor
    >>> found = polar_factor(torch.tensor([[[3.0, 0.0], [0.0, -4.0]]]), tol=1e-3)
    >>> bool(found.value <= 7), bool(found.upper >= 7), bool(found.error <= 1e-3)
    (True, True, True)
    """

    s: Tensor
    value: Tensor
    upper: Tensor

    @property
    def error(self) -> Tensor:
        """Return a proven upper bound on the relative error ``(||A||_* - <A, s>) / ||A||_*``, of
        shape (n,).
        """
        return torch.where(self.upper == 0, 0.0, (self.upper - self.value) / self.upper)


def polar_factor(g: Tensor, tol: float | None = None) -> Polar:
    """Return the polar factor of each matrix of a stack, or something as good up to a relative
    error.

    Parameters
    ----------
    g : Tensor
        Shape (n, rows, columns), float32 or float64; finite, which the caller has looked at.
    tol : float, optional
        The largest relative error of ``<g, s>`` against the nuclear norm. Without it, below
        ``LEAST_TOL``, and for small matrices on a CPU, the answer comes from a singular value
        decomposition.

    Returns
    -------
    Polar
        The matrices, their values, and upper bounds on the nuclear norms.

    Notes
    -----
    Matrices whose error could not be proven to be at most ``tol`` are decomposed, and only those.
    Finding out whether there are any is the only time that the host waits for a GPU: all else is
    copied in, replayed as one recording, and copied out. On a CPU one matrix is treated after the
    other, so that a matrix has the same result to the bit in every stack. A setting that lets
    float32 products of a GPU use TF32 makes more matrices miss the tolerance, and changes nothing
    about the proofs.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.polar import polar_factor
    >>> g = torch.tensor([[[0.0, 5.0, 0.0], [2.0, 0.0, 0.0]]])
    >>> (polar_factor(g, tol=1e-3).s.round(decimals=3) + 0.0).tolist()
    [[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]
    """
    if g.shape[1] > g.shape[2]:
        polar = polar_factor(g.mT, tol)
        return replace(polar, s=polar.s.mT)
    small = g.device.type == "cpu" and min(g.shape[1:]) <= SVD_UP_TO
    if tol is None or tol < LEAST_TOL or small:
        return one_by_one(_decomposed, g)
    return one_by_one(lambda stack: _by_iterations(stack, tol), g)


def _by_iterations(g: Tensor, tol: float) -> Polar:
    """Return the polar factor by Newton-Schulz, and by a decomposition where the error is not
    proven to be at most ``tol``.
    """
    tolerance = torch.full((), tol, dtype=torch.float64, device=g.device)
    # A GPU computes small matrices faster than Python launches the kernels: it replays a recording,
    # whose results the next replay overwrites.
    if g.is_cuda:
        recorded, proven = _recorded(g.dtype, g.device)(g, tolerance)
        polar = Polar(recorded.s.clone(), recorded.value.clone(), recorded.upper.clone())
        good = proven.clone()
    else:
        polar, good = _candidates(g, tolerance)
    return mended(polar, good, lambda bad: _decomposed(g[bad]))


def _candidates(g: Tensor, tol: Tensor) -> tuple[Polar, Tensor]:
    """Return what the iterations give, with its proof, and whether its error is at most ``tol``,
    (): bool, of shape (k,).

    The tolerance also decides how L is made. An error of NaN is not good; that of a matrix which is
    not finite is one, because R has such an entry then.
    """
    a, size = normalised(g)
    found = _proven(a.double(), _newton_schulz(a).double(), tol)
    answer = replace(found, value=found.value * size, upper=found.upper * size)
    return answer, found.error <= tol


@lru_cache(maxsize=8)
def _recorded(dtype: torch.dtype, device: torch.device) -> Replayed[tuple[Polar, Tensor]]:
    return Replayed(_candidates, most=64)


def _decomposed(g: Tensor) -> Polar:
    """Return the polar factors U V' of matrices (n, rows, columns) with rows <= columns from
    singular value decompositions, shrunk so that rounding errors leave them in the unit ball.
    """
    a, size = normalised(g)
    u, sigma, vh = torch.linalg.svd(a.double(), full_matrices=False)
    nuclear = sigma.sum(1)
    allowed = slack(*a.shape[1:])
    upper = nuclear + allowed * sigma[:, 0]
    return Polar((u @ vh) * (1 - allowed), nuclear * (1 - allowed) * size, upper * size)


def slack(m: int, n: int) -> float:
    """Return what is allowed for the rounding errors, in float64, of products of an m x n matrix
    with singular values up to 2.

    Parameters
    ----------
    m, n : int
        The sides of the matrix, the smaller one first.

    Returns
    -------
    float
        A bound on the largest singular value of the error, with a factor of 2 to spare; see the top
        of the file.

    Examples
    --------
    >>> from fedfw.linalg.polar import slack
    >>> slack(512, 512) < 1e-9
    True
    """
    return 8 * m * (m + n + 2) * torch.finfo(torch.float64).eps


def _newton_schulz(g: Tensor) -> Tensor:
    """Return candidates for the polar factors of normalised matrices (k, m, n), m <= n.

    The matrix is first divided by ||(AA')^2||_F^(1/4), an upper bound on its largest singular value
    that is too large by a factor of m^(1/8) at most. A step is X <- aX + (b G + c G^2) X with G =
    XX'. For wide matrices X = Q A, and only Q and G, which are m x m, are iterated; this squares
    the condition of the problem, so it is done in float64.
    """
    wide = g.shape[2] >= _WIDE * g.shape[1]
    if wide:
        a = g.double()
    else:
        a = g.float()
    gram = a @ a.mT
    square = gram @ gram
    size = torch.linalg.matrix_norm(square, keepdim=True).sqrt() * _MARGIN**2  # of gram
    size = torch.where(size > 0, size, 1.0)
    x = a
    if wide:
        x = torch.eye(a.shape[1], dtype=a.dtype, device=a.device).expand_as(gram)
    x = x / size.sqrt()
    gram = gram / size
    square = square / size**2
    for step, (first, third, fifth) in enumerate(STEPS):
        if step == 0:  # G^2 is at hand
            poly = third * gram + fifth * square
        else:
            if not wide:
                gram = x @ x.mT
            poly = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
        x = torch.baddbmm(x, poly, x, beta=first)
        if wide:  # G <- (aI + poly) G (aI + poly), the G of the new X
            half = torch.baddbmm(gram, poly, gram, beta=first)
            gram = torch.baddbmm(half, half, poly, beta=first)
    if wide:
        return x @ a
    return x


def _proven(a: Tensor, x: Tensor, tol: Tensor) -> Polar:
    """Return S = (3X - XX'X) / 2, which lies in the unit ball, for candidates x (k, m, n), its
    inner product with A, and the upper bound |L|_F^2 + sqrt(m) |A - LL'S|_F on the nuclear norm of
    A.

    The bound holds for every L; it is close where LL' is near AS'. Where x is too far from an
    isometry for a proof, the bound is infinite.
    """
    m, n = a.shape[1:]
    gram = x @ x.mT
    # |T^2 - T|_F <= 12 with T = XX' implies |X| <= 2, which the cubic maps into the unit ball; 11
    # leaves room for rounding errors.
    inside = torch.linalg.matrix_norm(torch.baddbmm(gram, gram, gram, beta=-1)) <= 11
    s = torch.baddbmm(x, gram, x, beta=1.5, alpha=-0.5) * (1 - slack(m, n))
    product = a @ s.mT
    product = (product + product.mT) / 2
    value = product.diagonal(dim1=1, dim2=2).sum(1)
    # A small multiple of the identity makes AS' positive definite; L is its Cholesky factor.
    product.diagonal(dim1=1, dim2=2).add_((value * (_SHIFT * tol / m) + _TINY)[:, None])
    factor = torch.linalg.cholesky_ex(product).L
    trace = factor.square().sum((1, 2))
    rest = torch.linalg.matrix_norm(torch.baddbmm(a, factor @ factor.mT, s, alpha=-1))
    eps = torch.finfo(torch.float64).eps
    frobenius = torch.linalg.matrix_norm(a)
    rounding = (m + 2) * eps * (frobenius + math.sqrt(m) * trace)
    upper = (trace + math.sqrt(m) * (rest + rounding)) * (1 + m * n * eps)
    # The bound of a zero matrix is 0.
    return Polar(s, value, torch.where(inside, upper, torch.inf) * (frobenius > 0))
