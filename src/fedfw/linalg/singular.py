"""The largest singular value and its vectors for a stack of matrices, with a rigorous upper bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfw.linalg.selection import row_norms
from fedfw.linalg.squaring import leading_vector

# Up to this smaller side a dense decomposition is faster than Lanczos (measured by benchmarks/oracles.py --crossover).
DENSE_UP_TO = 128
_CHECK_EVERY = 4  # steps between two checks of the Ritz values, the approximate singular values
_LEAST_STEPS = 8  # a warm start at what has become the second pair seems converged at once, so more steps are taken


@dataclass(frozen=True)
class TopSingular:
    """The top singular pair of each of n matrices G, and bounds on the largest singular value sigma_1. All in float64.

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
    error : Tensor
        An estimate of the accuracy ``(sigma_1 - value) / sigma_1``, of shape (n,).
    steps : int
        The number of Lanczos steps, which is 0 for a dense decomposition.

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
    error: Tensor
    steps: int


def top_singular(g: Tensor, tol: float = 1e-7, start: Tensor | None = None, max_steps: int = 300) -> TopSingular:
    """The largest singular value, with its left and right vectors, of each matrix of a stack.

    Parameters
    ----------
    g : Tensor
        Shape (n, rows, columns), float32 or float64; finite.
    tol : float, default 1e-7
        Relative accuracy wanted for the largest singular value.
    start : Tensor, optional
        Right vectors of shape (n, columns) to start from, such as those of the round before.
    max_steps : int, default 300
        The largest number of Lanczos steps.

    Returns
    -------
    TopSingular
        The vectors, the values and bounds on them.

    Notes
    -----
    Where the smaller side is at most ``DENSE_UP_TO`` the pair comes from a dense decomposition. Larger matrices use
    Golub-Kahan-Lanczos bidiagonalisation with full reorthogonalisation, until the estimated relative error of every
    matrix is at most ``tol``.

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.singular import top_singular
    >>> pair = top_singular(torch.diag(torch.tensor([1.0, 3.0, 2.0]))[None])
    >>> round(float(pair.value[0]), 6), pair.u.shape, pair.steps
    (3.0, torch.Size([1, 3]), 0)
    """
    n, rows, columns = g.shape
    if n > 1 and min(rows, columns) > DENSE_UP_TO and g.device.type == "cpu":
        # One matrix after another: each is read dozens of times, and a single one may fit into the processor's cache.
        each = [slice(i, i + 1) for i in range(n)]
        return _stacked([top_singular(g[i], tol, None if start is None else start[i], max_steps) for i in each])
    g, size = normalised(g)
    if min(rows, columns) <= DENSE_UP_TO:
        pair = _dense(g.double())
    elif rows >= columns:
        pair = _lanczos(g, tol, start, min(max_steps, columns))
    else:  # start on the smaller side, so that the full Krylov space contains the solution
        left = None if start is None else torch.bmm(g, start.to(g.dtype).unsqueeze(2)).squeeze(2)
        pair = _lanczos(g.mT, tol, left, min(max_steps, rows))
        pair = replace(pair, u=pair.v, v=pair.u)
    return replace(pair, value=pair.value * size, upper=pair.upper * size)


def _stacked(pairs: list[TopSingular]) -> TopSingular:
    """The results for single matrices as one result for a stack."""
    u, v, value, upper, error = (
        torch.cat([getattr(pair, name) for pair in pairs]) for name in ("u", "v", "value", "upper", "error")
    )
    return TopSingular(u, v, value, upper, error, max(pair.steps for pair in pairs))


def normalised(g: Tensor) -> tuple[Tensor, Tensor]:
    """Each matrix divided by a power of two near its largest entry, so that squares of entries stay in range.

    Because the factor is a power of two, scaling g by a power of two does not change the bits of the result.

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
    largest = g.abs().amax((1, 2)).double()
    exponent = torch.where(largest > 0, torch.floor(torch.log2(largest)), 0.0)
    limit = 120.0 if g.dtype == torch.float32 else 1000.0  # 2^limit is finite in g's dtype
    size = torch.exp2(exponent.clamp(-limit, limit))
    return g * (1 / size).to(g.dtype)[:, None, None], size


def _dense(g: Tensor) -> TopSingular:
    """The pair from the leading eigenvector of GG' or G'G, whichever is smaller: as accurate as an SVD, and faster."""
    wide = g.shape[1] <= g.shape[2]
    gram = g @ g.mT if wide else g.mT @ g
    if g.is_cuda:  # whose host need not wait for this, and which replays it
        vectors, largest = leading_vector(gram)
        one = _unit(vectors)
    else:
        values, vectors = torch.linalg.eigh(gram)
        one, largest = vectors[:, :, -1], values[:, -1].clamp(min=0)
    other = torch.bmm(g.mT if wide else g, one.unsqueeze(2)).squeeze(2)
    value = row_norms(other)
    u, v = (one, _unit(other)) if wide else (_unit(other), one)
    upper = torch.maximum(largest.sqrt(), value) * (1 + 1e-14)
    return TopSingular(u, v, value, upper, torch.zeros_like(value), 0)


def _lanczos(g: Tensor, tol: float, start: Tensor | None, max_steps: int) -> TopSingular:
    """The pair from Golub-Kahan-Lanczos bidiagonalisation; all matrices of the stack advance together."""
    n, rows, columns = g.shape
    right = g.new_empty(n, max_steps + 1, columns)
    left = g.new_empty(n, max_steps, rows)
    right[:, 0] = _start_vectors(g, start)
    diagonal: list[Tensor] = []
    above: list[Tensor] = []
    top_u, top_v = (g.new_zeros(n, side, dtype=torch.float64) for side in (rows, columns))
    error = g.new_full((n,), torch.inf, dtype=torch.float64)
    k = 0
    while True:
        u = torch.bmm(g, right[:, k].unsqueeze(2)).squeeze(2)
        left[:, k], alpha = _orthonormal(u, left[:, :k])
        w = torch.bmm(g.mT, left[:, k].unsqueeze(2)).squeeze(2)
        right[:, k + 1], beta = _orthonormal(w, right[:, : k + 1])
        diagonal.append(alpha)
        above.append(beta)
        k += 1
        if (k % _CHECK_EVERY or k < _LEAST_STEPS) and k < max_steps:
            continue
        bidiagonal = torch.stack(diagonal, 1).double().diag_embed()
        bidiagonal[:, :-1, 1:] += torch.stack(above, 1)[:, :-1].double().diag_embed()
        p, theta, q = torch.linalg.svd(bidiagonal)
        latest = _value_error(theta, beta.double() * p[:, -1, 0].abs())
        # A matrix keeps the pair that first met the tolerance, so that its result does not depend on the others.
        fresh = ((latest <= tol) | (k == max_steps)) & error.isinf()
        if not bool(fresh.any()):
            continue
        error[fresh] = latest[fresh]
        top_u[fresh] = _unit(torch.bmm(p[fresh, None, :, 0], left[fresh, :k].double()).squeeze(1))
        top_v[fresh] = _unit(torch.bmm(q[fresh, :1], right[fresh, :k].double()).squeeze(1))
        if not bool(error.isinf().any()):
            return _certified(g, top_u, top_v, error, k)


def _start_vectors(g: Tensor, start: Tensor | None) -> Tensor:
    """Fixed pseudo-random vectors; a warm start is mixed with them, since it may be orthogonal to the solution."""
    generator = torch.Generator().manual_seed(0)
    noise = _unit(torch.randn(1, g.shape[2], generator=generator, dtype=torch.float64).to(g.device))
    if start is None:
        return noise.to(g.dtype).repeat(g.shape[0], 1)
    return _unit(_unit(start.double()) + 0.3 * noise).to(g.dtype)


def _orthonormal(x: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Remove from x (n, d) its part in the span of ``basis`` (n, k, d), and normalise what is left.

    The removal is done twice for numerical stability. Returns the unit vectors (n, d) and the norms before
    normalisation (n,).
    """
    before = torch.linalg.vector_norm(x, dim=1)
    column = x.unsqueeze(2)
    for _ in range(2 if basis.shape[1] else 0):
        column = torch.baddbmm(column, basis.mT, torch.bmm(basis, column), alpha=-1)
    x = column.squeeze(2)
    norm = torch.linalg.vector_norm(x, dim=1)
    # After the Krylov space is exhausted only rounding noise is left, which must not become a direction.
    norm = norm * (norm > 32 * torch.finfo(x.dtype).eps * before)
    return torch.where(norm[:, None] > 0, x / norm[:, None], 0.0), norm


def _value_error(theta: Tensor, residual: Tensor) -> Tensor:
    """Estimated relative error of the largest Ritz value: the residual, or its square over the gap.

    It is an estimate and not a bound, because a near-tie of the two largest singular values can hide the first one for
    some steps. Extrapolating the growth of the value would stop earlier, but would take such a plateau for convergence
    far more often, so it is not used.
    """
    top = theta[:, 0]
    second = theta[:, 1] if theta.shape[1] > 1 else torch.zeros_like(top)
    gap = (top - second).clamp(min=1e-300)
    error = torch.minimum(residual, residual.square() / gap)
    return torch.where(top > 0, error / top.clamp(min=1e-300), 0.0)


def _certified(g: Tensor, u: Tensor, v: Tensor, error: Tensor, steps: int) -> TopSingular:
    """Add the rigorous upper bound on sigma_1.

    In orthonormal bases that begin with u and v, G is [[theta, a'], [b, C]], and ||C||_2 is at most ||C||_F.
    """
    forward = torch.bmm(g, v.to(g.dtype).unsqueeze(2)).squeeze(2).double()
    backward = torch.bmm(g.mT, u.to(g.dtype).unsqueeze(2)).squeeze(2).double()
    theta = (u * forward).sum(1)
    r1 = row_norms(forward - theta[:, None] * u)
    r2 = row_norms(backward - theta[:, None] * v)
    # Row norms are computed in g's precision, which is fast, and combined in float64, since float32 would lose five
    # digits over a whole matrix.
    frobenius = row_norms(torch.linalg.vector_norm(g, dim=2, dtype=None if g.shape[2] <= 4096 else torch.float64))
    rest = (frobenius.square() - theta.square() - r1.square() - r2.square()).clamp(min=0).sqrt()
    blocks = torch.stack([torch.stack([theta, r2], 1), torch.stack([r1, rest], 1)], 1)
    upper = torch.minimum(torch.linalg.matrix_norm(blocks, ord=2), frobenius)
    slack = 1 + 16 * torch.finfo(g.dtype).eps  # for the rounding errors of the products above
    return TopSingular(u, v, theta, upper * slack, error, steps)


def _unit(x: Tensor) -> Tensor:
    """Rows scaled to norm one; a zero row becomes the first unit vector."""
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    first = torch.zeros_like(x)
    first[:, 0] = 1
    return torch.where(norm > 0, x / norm.clamp(min=torch.finfo(x.dtype).tiny), first)
