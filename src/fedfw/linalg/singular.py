"""The largest singular value and its vectors, for a stack of matrices, with a bound that can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfw.linalg.selection import row_norms

# Up to this smaller side a dense decomposition beats Lanczos (measured by benchmarks/oracles.py --crossover).
DENSE_UP_TO = 128
_CHECK_EVERY = 4  # steps between two looks at the Ritz values
_LEAST_STEPS = 8  # a warm start at what is now the second pair looks converged at once; let the first one show


@dataclass(frozen=True)
class TopSingular:
    """For each of n matrices: unit vectors u (n, rows), v (n, columns) and what is known of sigma_1.

    ``value`` is u'Gv, a lower bound on sigma_1; ``upper`` is a true upper bound (up to rounding); ``error``
    estimates (sigma_1 - value) / sigma_1, the accuracy reached; ``steps`` is the Krylov dimension, 0 for a dense
    decomposition. All in float64.
    """

    u: Tensor
    v: Tensor
    value: Tensor
    upper: Tensor
    error: Tensor
    steps: int


def top_singular(g: Tensor, tol: float = 1e-7, start: Tensor | None = None, max_steps: int = 300) -> TopSingular:
    """Top singular pair of each matrix of a stack.

    Small matrices get a dense decomposition. Larger ones Golub-Kahan-Lanczos bidiagonalisation with full
    reorthogonalisation: all matrices advance together until each one's estimated relative error in sigma_1 is at
    most ``tol``.

    Parameters
    ----------
    g
        (n, rows, columns), float32 or float64; finite.
    tol
        Relative accuracy asked of sigma_1.
    start
        (n, columns) right vectors to begin from, such as those of the round before.
    """
    n, rows, columns = g.shape
    if n > 1 and min(rows, columns) > DENSE_UP_TO and g.device.type == "cpu":
        # One after another: a matrix is read dozens of times, and one of them may stay in the processor's cache.
        each = [slice(i, i + 1) for i in range(n)]
        return _stacked([top_singular(g[i], tol, None if start is None else start[i], max_steps) for i in each])
    g, size = normalised(g)
    if min(rows, columns) <= DENSE_UP_TO:
        pair = _dense(g.double())
    elif rows >= columns:
        pair = _lanczos(g, tol, start, min(max_steps, columns))
    else:  # the starting side is the smaller one: a full Krylov space then holds the answer
        left = None if start is None else torch.bmm(g, start.to(g.dtype).unsqueeze(2)).squeeze(2)
        pair = _lanczos(g.mT, tol, left, min(max_steps, rows))
        pair = replace(pair, u=pair.v, v=pair.u)
    return replace(pair, value=pair.value * size, upper=pair.upper * size)


def _stacked(pairs: list[TopSingular]) -> TopSingular:
    u, v, value, upper, error = (
        torch.cat([getattr(pair, name) for pair in pairs]) for name in ("u", "v", "value", "upper", "error")
    )
    return TopSingular(u, v, value, upper, error, max(pair.steps for pair in pairs))


def normalised(g: Tensor) -> tuple[Tensor, Tensor]:
    """Each matrix of a stack (n, rows, columns) over a power of two near its largest entry, and those powers (n,).

    Squares then stay in range, and the answer's bits do not depend on the size of g.
    """
    largest = g.abs().amax((1, 2)).double()
    exponent = torch.where(largest > 0, torch.floor(torch.log2(largest)), 0.0)
    limit = 120.0 if g.dtype == torch.float32 else 1000.0  # 2^limit is finite in g's dtype
    size = torch.exp2(exponent.clamp(-limit, limit))
    return g * (1 / size).to(g.dtype)[:, None, None], size


def _dense(g: Tensor) -> TopSingular:
    """From the eigenvectors of GG' or G'G, whichever is smaller: for the top pair as accurate as an SVD, and faster."""
    wide = g.shape[1] <= g.shape[2]
    values, vectors = torch.linalg.eigh(g @ g.mT if wide else g.mT @ g)
    one = vectors[:, :, -1]
    other = torch.bmm(g.mT if wide else g, one.unsqueeze(2)).squeeze(2)
    value = row_norms(other)
    u, v = (one, _unit(other)) if wide else (_unit(other), one)
    upper = torch.maximum(values[:, -1].clamp(min=0).sqrt(), value) * (1 + 1e-14)
    return TopSingular(u, v, value, upper, torch.zeros_like(value), 0)


def _lanczos(g: Tensor, tol: float, start: Tensor | None, max_steps: int) -> TopSingular:
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
        # A matrix keeps the pair with which it first met the tolerance: its answer must not depend on the others.
        fresh = ((latest <= tol) | (k == max_steps)) & error.isinf()
        if not bool(fresh.any()):
            continue
        error[fresh] = latest[fresh]
        top_u[fresh] = _unit(torch.bmm(p[fresh, None, :, 0], left[fresh, :k].double()).squeeze(1))
        top_v[fresh] = _unit(torch.bmm(q[fresh, :1], right[fresh, :k].double()).squeeze(1))
        if not bool(error.isinf().any()):
            return _certified(g, top_u, top_v, error, k)


def _start_vectors(g: Tensor, start: Tensor | None) -> Tensor:
    """Fixed pseudo-random vectors; a warm start keeps a little of them, lest it be orthogonal to the answer."""
    generator = torch.Generator().manual_seed(0)
    noise = _unit(torch.randn(1, g.shape[2], generator=generator, dtype=torch.float64).to(g.device))
    if start is None:
        return noise.to(g.dtype).repeat(g.shape[0], 1)
    return _unit(_unit(start.double()) + 0.3 * noise).to(g.dtype)


def _orthonormal(x: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Remove from x (n, d) its part in ``basis`` (n, k, d), twice for stability; the unit vector and the norm left."""
    before = torch.linalg.vector_norm(x, dim=1)
    column = x.unsqueeze(2)
    for _ in range(2 if basis.shape[1] else 0):
        column = torch.baddbmm(column, basis.mT, torch.bmm(basis, column), alpha=-1)
    x = column.squeeze(2)
    norm = torch.linalg.vector_norm(x, dim=1)
    # What is left of an exhausted Krylov space is rounding noise: it must not become a direction.
    norm = norm * (norm > 32 * torch.finfo(x.dtype).eps * before)
    return torch.where(norm[:, None] > 0, x / norm[:, None], 0.0), norm


def _value_error(theta: Tensor, residual: Tensor) -> Tensor:
    """Estimated relative error of the largest Ritz value: the residual, or its square over the gap when smaller.

    An estimate, not a bound: a near-tie on top can hide the first pair for a while. Extrapolating the value's growth
    would stop earlier still, but mistakes such plateaus for the end far more often, so it is not used.
    """
    top = theta[:, 0]
    second = theta[:, 1] if theta.shape[1] > 1 else torch.zeros_like(top)
    gap = (top - second).clamp(min=1e-300)
    error = torch.minimum(residual, residual.square() / gap)
    return torch.where(top > 0, error / top.clamp(min=1e-300), 0.0)


def _certified(g: Tensor, u: Tensor, v: Tensor, error: Tensor, steps: int) -> TopSingular:
    """Add the true bound: in bases that begin with u and v, G = [[theta, a'], [b, C]] with ||C||_2 <= ||C||_F."""
    forward = torch.bmm(g, v.to(g.dtype).unsqueeze(2)).squeeze(2).double()
    backward = torch.bmm(g.mT, u.to(g.dtype).unsqueeze(2)).squeeze(2).double()
    theta = (u * forward).sum(1)
    r1 = row_norms(forward - theta[:, None] * u)
    r2 = row_norms(backward - theta[:, None] * v)
    # Rows in g's precision (fast), their sum in float64: over a whole matrix float32 would lose five digits.
    frobenius = row_norms(torch.linalg.vector_norm(g, dim=2, dtype=None if g.shape[2] <= 4096 else torch.float64))
    rest = (frobenius.square() - theta.square() - r1.square() - r2.square()).clamp(min=0).sqrt()
    blocks = torch.stack([torch.stack([theta, r2], 1), torch.stack([r1, rest], 1)], 1)
    upper = torch.minimum(torch.linalg.matrix_norm(blocks, ord=2), frobenius)
    slack = 1 + 16 * torch.finfo(g.dtype).eps  # the rounding of the products above
    return TopSingular(u, v, theta, upper * slack, error, steps)


def _unit(x: Tensor) -> Tensor:
    """Rows of norm one; a zero row becomes the first unit vector."""
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    first = torch.zeros_like(x)
    first[:, 0] = 1
    return torch.where(norm > 0, x / norm.clamp(min=torch.finfo(x.dtype).tiny), first)
