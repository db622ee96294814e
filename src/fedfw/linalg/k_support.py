"""The k-support norm and the projection on its ball, from one sort of the magnitudes.

Below, s_1 >= s_2 >= ... >= s_p are the magnitudes of a row in descending order and s_(p+1) = 0. The
square of the norm is the minimum of ``sum s_j^2 / theta_j`` over ``0 < theta_j <= 1`` with ``sum
theta_j <= k`` (Argyriou, Foygel and Srebro, 2012; McDonald et al., 2016). The projection on the
ball of radius r is, for one multiplier mu >= 0,

    w_j = s_j theta_j / (theta_j + mu)
    with   theta_j = clip(alpha s_j - mu, 0, 1)   and   sum theta_j = k.

With tau = mu / alpha and d = 1 / alpha it has a head, a middle and a tail:

    s_j >= tau + d:        w_j = s_j / (1 + mu)
    tau < s_j < tau + d:   w_j = s_j - tau
    s_j <= tau:            w_j = 0.

Let the head have i < k entries and the middle end at m > k. As mu grows, i never falls, m never
grows and the norm of w never grows, so both are found by bisection (as in Lai et al., 2014), and
each guess is judged in closed form. With

    K_i = sum over i < j <= k of (s_j - s_k),        G_m = sum over k < j <= m of (s_j - s_m),

the condition sum theta_j = k fixes tau where tau + d = s_i, and d where tau = s_m, and the norm of
w is ``d sqrt(A_i / (tau + d)^2 + k - i)``, where A_i is the sum of the first i squares. These are
sums of differences of entries. So they stay exact where the entries are large and close to each
other, and a projected point stays in the ball when it comes from far away.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedfw.linalg.selection import descending, power_of_two


def k_support_norm(x: Tensor, k: int) -> Tensor:
    """Return the k-support norm of each row.

    Parameters
    ----------
    x : Tensor
        Shape (n, p), float64.
    k : int
        At least 1.

    Returns
    -------
    Tensor
        The norms, of shape (n,).

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.k_support import k_support_norm
    >>> x = torch.tensor([[3.0, -4.0, 0.0], [2.0, 2.0, 2.0]], dtype=torch.float64)
    >>> k_support_norm(x, 1).tolist(), k_support_norm(x, 2).round(decimals=4).tolist()
    ([7.0, 6.0], [5.0, 4.2426])
    """
    ranked, size = _ranked(x.abs())
    return _norm(ranked, k) * size[:, 0]


def k_support_projection(x: Tensor, k: int, r: float) -> Tensor:
    """Project each row on the ball of the k-support norm with radius r.

    Parameters
    ----------
    x : Tensor
        Shape (n, p), float64; finite.
    k : int
        At least 1.
    r : float
        The radius; positive.

    Returns
    -------
    Tensor
        The projections, of shape (n, p).

    Examples
    --------
    >>> import torch
    >>> from fedfw.linalg.k_support import k_support_projection
    >>> x = torch.tensor([[3.0, -4.0, 0.0], [2.0, 1.0, 0.0]], dtype=torch.float64)
    >>> k_support_projection(x, k=2, r=2.5).tolist()
    [[1.5, -2.0, 0.0], [2.0, 1.0, 0.0]]
    >>> k_support_projection(x, k=1, r=2.0).tolist()
    [[0.5, -1.5, 0.0], [1.5, 0.5, 0.0]]
    """
    a = x.abs()
    ranked, size = _ranked(a)  # magnitudes in descending order, divided by size (n, 1)
    k = min(k, x.shape[1])
    radius = r / size
    outside = _norm(ranked, k)[:, None] > radius
    if not outside.any():
        return x
    kth = ranked[:, k - 1 : k]
    after = ranked[:, k : k + 1]
    # The projection is a / (1 + mu) from the magnitude top on, and a - bottom + lift below, or 0
    # where that is negative. First the case that only the k largest entries count: they are scaled
    # to norm r, and all others become 0.
    top = kth
    mu = torch.linalg.vector_norm(ranked[:, :k], dim=1, keepdim=True) / radius - 1
    bottom = kth
    lift = 0 * kth
    if k < x.shape[1]:
        # With that mu the next entry s_(k+1) is at most mu s_k / (1 + mu), so that it becomes 0.
        two_parts_suffice = (kth - after) * mu >= after
        if not two_parts_suffice.all():
            three_parts = _three_parts(ranked, k, radius)
            top, mu, bottom, lift = (
                torch.where(two_parts_suffice, of_two, of_three)
                for of_two, of_three in zip((top, mu, bottom, lift), three_parts, strict=True)
            )
    # A row inside the ball stays as it is: all of its entries are divided by 1 + mu = 1.
    top = torch.where(outside, top, 0.0)
    mu = torch.where(outside, mu, 0.0)
    middle = a.sub(bottom * size).add_(lift * size).clamp_(min=0)
    return torch.where(a >= top * size, a / (1 + mu), middle).copysign_(x)


def _ranked(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return magnitudes in descending order (n, p), divided by powers of two (n, 1), so that their
    squares stay in range.
    """
    ranked = descending(a)
    size = power_of_two(ranked[:, :1])
    return ranked.mul_(1 / size), size


def _norm(ranked: Tensor, k: int) -> Tensor:
    """Return the k-support norms (n,) of rows of magnitudes in descending order (n, p).

    The squared norm is the minimum of ``sum_j s_j^2 / theta_j`` over ``0 < theta_j <= 1`` with
    ``sum_j theta_j <= k``. In the minimiser the k - share largest entries have theta_j = 1, and the
    others have theta_j = share s_j / T with their sum T, which makes ``sum of the first s_j^2 +
    T^2 / share``. All share = 1, ..., k are tried, in the columns below.
    """
    k = min(k, ranked.shape[1])
    head = ranked[:, :k]
    # T: sums of the entries from index k - 1, k - 2, ..., 0 on.
    tails = head.flip(1).cumsum(1) + ranked[:, k:].sum(1, keepdim=True)
    squares = head.square()
    before = (squares.cumsum(1) - squares).flip(1)  # sums of the squares before these indices
    share = torch.arange(1, k + 1, device=ranked.device)
    # theta_j <= 1; equal entries have theta_j = 1, which the rounding errors of T must not exclude.
    feasible = head.flip(1) * share <= tails * (1 + 1e-12)
    return torch.where(feasible, before + tails.square() / share, math.inf).amin(1).sqrt()


def _three_parts(s: Tensor, k: int, radius: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the projection on balls (n, 1) of rows s in descending order (n, p) that lie outside:
    s_j / (1 + mu) in the head j <= i, s_j - tau in the middle i < j <= m, and 0 in the tail.

    Returns s_i (infinity for an empty head), mu, s_m and s_m - tau, each of shape (n, 1). The
    middle must not be empty. A_i, K_i, G_m and d are those at the top of the file.
    """
    n, p = s.shape
    none = s.new_zeros(n, 1)  # of the empty sums
    kth = s[:, k - 1 : k]
    roots = torch.cat([none, s[:, :k].square().cumsum(1).sqrt()], 1)  # sqrt(A_i) for i = 0 ... k
    above = torch.cat([(s[:, :k] - kth).flip(1).cumsum(1).flip(1), none], 1)  # K_i for i = 0 ... k
    counts = torch.arange(1, p - k, dtype=s.dtype, device=s.device)
    # G_m for m = k + 1 ... p.
    below = torch.cat([none, (s[:, k:-1] - s[:, k + 1 :]).mul_(counts).cumsum(1)], 1)

    def rank(j: Tensor) -> Tensor:  # s_j
        return s.gather(1, (j - 1).clamp(min=0))

    def norm(i: Tensor, tau: Tensor, d: Tensor) -> Tensor:  # of w, with a head of i entries
        return torch.hypot(roots.gather(1, i) * (d / (tau + d)), d * (k - i).to(s.dtype).sqrt())

    def head_reaches(i: Tensor) -> Tensor:
        """Return whether entry i is in the head (n, 1): at the tau where s_i = tau + d the norm is
        still above the radius, or no tau > 0 is left for it.
        """
        enough = (k - i) * (rank(i) - kth) - above.gather(1, i)
        further = torch.searchsorted(below, enough).clamp(min=1)  # m - k
        rise = (enough - below.gather(1, further - 1)) / further
        tau = rank(k + further) - rise
        return (tau <= 0) | (norm(i, tau, rank(i) - rank(k + further) + rise) > radius)

    i = _last(head_reaches, 0, k, none)

    def width(m: Tensor) -> Tensor:  # d where tau = s_m
        return (above.gather(1, i) + below.gather(1, m - k - 1)) / (k - i) + (kth - rank(m))

    m = _last(lambda m: norm(i, rank(m), width(m)) <= radius, k + 1, p + 1, none)
    lowest = rank(m)
    d = width(m)
    share = (k - i).to(s.dtype)
    count = (m - i).to(s.dtype)
    after = torch.where(m < p, s.gather(1, m.clamp(max=p - 1)), 0.0)
    # At tau = s_(m + 1), which is not above the solution.
    mu = after / (d + (lowest - after) * (count / share))
    # Newton's method on 1 / |w| = 1 / r: the left side is concave and increases in mu, so every
    # step is upwards. It ends when mu stays the same, after 60 steps at most.
    head = roots.gather(1, i)
    middle = share.sqrt() * (share * d + count * lowest)
    for _ in range(60):
        largest = head / (1 + mu)
        rest = middle / (share + mu * count)
        size = torch.hypot(largest, rest)
        slope = (largest / size).square() / (1 + mu) + (rest / size).square() * count / (
            share + mu * count
        )
        better = torch.maximum(mu, mu + (size / radius - 1) / slope)
        if bool((better == mu).all()):
            break
        mu = better
    lift = share * (lowest - mu * d) / (share + mu * count)
    return torch.where(i > 0, rank(i), math.inf), mu, lowest, lift


def _last(holds: Callable[[Tensor], Tensor], low: int, high: int, like: Tensor) -> Tensor:
    """Return by bisection, for each of n rows, the last index of ``low ... high - 1`` at which a
    condition on indices (n, 1) holds; it holds at ``low`` and, from some index on, never again.
    """
    last = torch.full(like.shape, low, device=like.device)
    end = torch.full(like.shape, high, device=like.device)
    for _ in range((high - low - 1).bit_length()):
        half = (last + end) // 2
        good = holds(half)
        last = torch.where(good, half, last)
        end = torch.where(good, end, half)
    return last
