"""The largest singular value and its vectors for a stack of matrices, with a rigorous upper
bound.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from fedfw.linalg.lanczos import advance
from fedfw.linalg.selection import row_norms
from fedfw.linalg.squaring import leading_vector
from fedfw.linalg.stacks import one_by_one

# Up to this smaller side a dense decomposition is faster than Lanczos.
DENSE_UP_TO = 128
_CHECK_EVERY = 4  # steps between two checks of the Ritz values, the approximate singular values
# with fewer, a pair that is not the first one may seem converged, so only a proof ends the search
_LEAST_STEPS = 8
_MOST_STEPS = 300


@dataclass(frozen=True)
class TopSingular:
    """The top singular pair of each of n matrices G, and bounds on the largest singular value
    sigma_1. All in float64.

    Parameters
    ----------
    u : Tensor
        Left unit vectors, of shape (n, rows).
    v : Tensor
        Right unit vectors, of shape (n, columns).
    value : Tensor
        ``u'Gv``, a lower bound on sigma_1, of shape (n,).
    upper : Tensor
        A true upper bound on sigma_1, up to rounding, of shape (n,).

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.singular import top_singular
    >>> pair = top_singular(torch.eye(3)[None])
    >>> bool(pair.value <= 1 + 1e-9), bool(pair.upper >= 1 - 1e-9)
    (True, True)
    """

    u: Tensor
    v: Tensor
    value: Tensor
    upper: Tensor


def top_singular(g: Tensor, tol: float = 1e-7) -> TopSingular:
    """Return the largest singular value, with its left and right vectors, of each matrix of a
    stack.

    Parameters
    ----------
    g : Tensor
        Shape (n, rows, columns), float32 or float64; finite.
    tol : float, default 1e-7
        Relative accuracy wanted for the largest singular value.

    Returns
    -------
    TopSingular
        The vectors, the values and bounds on them.

    Notes
    -----
    Where the smaller side is at most ``DENSE_UP_TO`` the pair comes from a dense decomposition.
    Larger matrices use Lanczos iterations on G'G with full reorthogonalisation, until the relative
    error of every matrix is proven to be at most ``tol``, or estimated to be after ``_LEAST_STEPS``
    steps or more.

    The search always begins at the same pseudo-random vector. One that began at an earlier answer
    would take fewer steps only if it were less careful: residuals alone cannot tell the first pair
    from a second one, and whatever rules out a larger singular value has to come from a vector that
    is not close to any pair.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.singular import top_singular
    >>> pair = top_singular(torch.diag(torch.tensor([1.0, 3.0, 2.0]))[None])
    >>> round(float(pair.value[0]), 6), pair.u.shape
    (3.0, torch.Size([1, 3]))
    """
    g, size = normalised(g)
    if min(g.shape[1:]) <= DENSE_UP_TO:
        pair = _dense(g.double())
    else:  # one by one: a matrix is read dozens of times, and may fit into the processor's cache
        pair = one_by_one(lambda stack: _iterated(stack, tol), g)
    return replace(pair, value=pair.value * size, upper=pair.upper * size)


def normalised(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return each matrix divided by a power of two near its largest entry, so that squares of
    entries stay in range.

    Because the factor is a power of two, scaling g by a power of two does not change the bits of
    the result.

    Parameters
    ----------
    g : Tensor
        Shape (n, rows, columns); finite.

    Returns
    -------
    tuple of Tensor
        The scaled matrices, of shape (n, rows, columns), and the powers of two, of shape (n,).

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.singular import normalised
    >>> scaled, size = normalised(torch.tensor([[[3.0, 8.0]]]))
    >>> scaled.tolist(), size.tolist()
    ([[[0.375, 1.0]]], [8.0])
    """
    # Faster than the maximum of g.abs().
    largest = torch.maximum(g.amax((1, 2)), -g.amin((1, 2))).double()
    exponent = torch.where(largest > 0, torch.floor(torch.log2(largest)), 0.0)
    # 2^limit is finite in g's dtype
    limit = 1000.0
    if g.dtype == torch.float32:
        limit = 120.0
    size = torch.exp2(exponent.clamp(-limit, limit))
    return g * (1 / size).to(g.dtype)[:, None, None], size


def _dense(g: Tensor) -> TopSingular:
    """Return the pair from the leading eigenvector of GG' or G'G, whichever is smaller: as accurate
    as an SVD, and faster.
    """
    wide = g.shape[1] <= g.shape[2]
    if wide:
        gram = g @ g.mT
    else:
        gram = g.mT @ g
    if g.is_cuda:  # squaring waits for no result, so that a CUDA graph can hold it
        vectors, largest = leading_vector(gram)
        leading = _unit(vectors)
    else:
        values, vectors = torch.linalg.eigh(gram)
        leading = vectors[:, :, -1]
        largest = values[:, -1].clamp(min=0)
    image = torch.bmm(g.mT if wide else g, leading.unsqueeze(2)).squeeze(2)
    value = row_norms(image)
    u, v = (leading, _unit(image)) if wide else (_unit(image), leading)
    upper = torch.maximum(largest.sqrt(), value) * (1 + 1e-14)  # for rounding errors
    return TopSingular(u, v, value, upper)


def _iterated(g: Tensor, tol: float) -> TopSingular:
    """Return the pair from Lanczos iterations on the smaller side, so that the full Krylov space
    contains the solution.
    """
    if g.shape[1] >= g.shape[2]:
        return _lanczos(g, tol)
    pair = _lanczos(g.mT.contiguous(), tol)
    return replace(pair, u=pair.v, v=pair.u)


def _lanczos(g: Tensor, tol: float) -> TopSingular:
    """Return the top singular pair of each matrix (n, rows, columns) from Lanczos iterations on
    G'G, at most _MOST_STEPS; all matrices of the stack advance together.

    The number of columns must be at least _LEAST_STEPS, so that the last check, which takes what
    was reached, is not an early one; `top_singular` calls this for more than DENSE_UP_TO.
    """
    n, _, columns = g.shape
    max_steps = min(_MOST_STEPS, columns)
    frobenius = _frobenius(g)
    basis = g.new_empty(n, max_steps + 1, columns)
    basis[:, 0] = _noise(columns).to(g)
    diagonal = g.new_zeros(n, max_steps, dtype=torch.float64)
    beside = torch.zeros_like(diagonal)
    top_v = g.new_zeros(n, columns, dtype=torch.float64)
    error = g.new_full((n,), torch.inf, dtype=torch.float64)  # infinite while a search goes on
    k = 0
    while k < max_steps and bool(error.isinf().any()):
        done = k
        k = min(k + _CHECK_EVERY, max_steps)
        advance(g, basis, done, k, diagonal, beside)
        on = diagonal[:, :k]
        off = beside[:, :k]
        early = k < _LEAST_STEPS
        # `_upper_bound` takes all of G beside a Ritz value theta for one more singular value, so it
        # proves theta only where |G|_F^2 - theta^2 < theta^2. The diagonal is at most theta^2.
        provable = frobenius.square() < 2 * on.amax(1)
        if early and not provable.any():
            continue
        tridiagonal = on.diag_embed()
        tridiagonal[:, 1:, :-1] += off[:, :-1].diag_embed()  # `eigh` reads the lower triangle
        values, vectors = torch.linalg.eigh(tridiagonal)
        theta = values.clamp(min=0).sqrt()
        top = theta[:, -1]
        # |G'u - theta v|; the clamp is for a matrix of zeros, whose theta is 0.
        residual = off[:, -1] * vectors[:, -1, -1].abs() / top.clamp(min=1e-300)
        if early:
            latest = torch.full_like(error, torch.inf)
        else:
            latest = _value_error(theta, residual)
        # The largest relative error of the value that an upper bound on sigma_1 leaves.
        upper = _upper_bound(top, residual, frobenius) * _slack(g)
        proven = torch.where(upper > 0, 1 - top / upper, 0.0)
        latest = torch.where(provable, torch.minimum(latest, proven), latest)
        # A matrix keeps the pair that first met the tolerance, so that its result does not depend
        # on the others.
        fresh = ((latest <= tol) | (k == max_steps)) & error.isinf()
        if bool(fresh.any()):
            error[fresh] = latest[fresh]
            top_v[fresh] = _unit(
                torch.bmm(vectors[fresh, None, :, -1], basis[fresh, :k].double()).squeeze(1)
            )
    return _certified(g, top_v, frobenius)


@lru_cache(maxsize=16)
def _noise(length: int) -> Tensor:
    """Return a fixed pseudo-random unit vector (length,), from which every search begins; in
    float64.
    """
    noise = torch.randn(1, length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return _unit(noise)[0]


def _value_error(theta: Tensor, residual: Tensor) -> Tensor:
    """Return the estimated relative error of the largest Ritz value: the residual of its pair, or
    the square of that over the gap.

    ``theta`` (n, k) are approximate singular values in ascending order. It is an estimate and not a
    bound, because a near-tie of the two largest singular values can hide the first one for some
    steps. Extrapolating the growth of the value would stop earlier, but would take such a plateau
    for convergence far more often, so it is not used.
    """
    top = theta[:, -1]
    gap = (top - theta[:, -2]).clamp(min=1e-300)
    error = torch.minimum(residual, residual.square() / gap)
    return torch.where(top > 0, error / top.clamp(min=1e-300), 0.0)


def _frobenius(g: Tensor) -> Tensor:
    """Return the Frobenius norms (n,) in float64.

    Row norms are computed in g's precision, which is fast, and combined in float64, since float32
    would lose five digits over a whole matrix.
    """
    return row_norms(
        torch.linalg.vector_norm(g, dim=2, dtype=None if g.shape[2] <= 4096 else torch.float64)
    )


def _upper_bound(theta: Tensor, residual: Tensor, frobenius: Tensor) -> Tensor:
    """Return an upper bound on sigma_1 from unit vectors u and v with Gv = theta u and |G'u - theta
    v| = residual, all (n,).

    In orthonormal bases that begin with u and v, G is [[theta, a'], [0, C]] with |a| = residual.
    Its norm is at most that of the 2 x 2 matrix [[theta, residual], [0, |C|_F]].
    """
    top = theta.square()
    beside = residual.square()
    rest = (frobenius.square() - top - beside).clamp(min=0)
    root = ((top - rest).square() + beside * (2 * (top + rest) + beside)).sqrt()
    return torch.minimum(((top + rest + beside + root) / 2).sqrt(), frobenius)


def _slack(g: Tensor) -> float:
    """Return the factor by which a bound grows for the rounding errors of the products behind
    it.
    """
    return 1 + 16 * torch.finfo(g.dtype).eps


def _certified(g: Tensor, v: Tensor, frobenius: Tensor) -> TopSingular:
    """Return the pair with the right vectors v (n, columns), and the rigorous upper bound on
    sigma_1.
    """
    forward = torch.bmm(g, v.to(g.dtype).unsqueeze(2)).squeeze(2).double()
    theta = row_norms(forward)
    u = _unit(forward)
    backward = torch.bmm(g.mT, u.to(g.dtype).unsqueeze(2)).squeeze(2).double()
    upper = _upper_bound(theta, row_norms(backward - theta[:, None] * v), frobenius) * _slack(g)
    # G'u is at hand, and the unit vector in its direction reaches at least theta.
    return TopSingular(u, _unit(backward), row_norms(backward), upper)


def _unit(x: Tensor) -> Tensor:
    """Return rows scaled to norm one; a zero row becomes the first unit vector."""
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    first = torch.zeros_like(x)
    first[:, 0] = 1
    return torch.where(norm > 0, x / norm.clamp(min=torch.finfo(x.dtype).tiny), first)
