"""The k-support norm and the projection on its ball against nested root finding and the oracle's certificate."""

from __future__ import annotations

from itertools import combinations, compress

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import fedfw
from fedfw.linalg.k_support import k_support_norm, k_support_projection


def inputs(p: int, rows: int = 6) -> dict[str, torch.Tensor]:
    x = torch.randn(rows, p, generator=torch.Generator().manual_seed(p), dtype=torch.float64)
    return {
        "gaussian": x,
        "ties": (2 * x).round() / 2,
        "all equal": x.sign(),
        "nearly equal": x.sign() * (1 + 1e-9 * x),
        "heavy tails": x * (3 * x).exp(),
        "mostly zero": torch.where(torch.arange(p) % 4 == 0, x, 0.0),
        "one huge": torch.where(torch.arange(p) == p // 2, 1e12, x),
    }


def sized(x: np.ndarray, k: int) -> float:
    """The k-support norm: the square root of the least sum x_j^2 / theta_j, where theta_j = min(1, |x_j| / level)."""
    a = np.abs(x[x != 0])
    if len(a) <= k:
        return float(np.linalg.norm(a))
    level = brentq(lambda level: np.minimum(1, a / level).sum() - k, a.min() / 2, 2 * a.sum(), xtol=1e-300, rtol=1e-15)
    return float(np.sqrt((a**2 / np.minimum(1, a / level)).sum()))


def nearest(x: np.ndarray, k: int, r: float) -> np.ndarray:
    """The projection by two nested root findings, over the multiplier and over alpha."""

    def shrunk(mu: float) -> np.ndarray:
        a = np.abs(x)
        ranked = np.sort(a)[::-1]
        theta = np.ones_like(a)
        if k < len(a) and ranked[k] > 0:
            enough = (1 + mu) / ranked[k - 1]
            if np.clip(enough * a - mu, 0, 1).sum() <= k:
                theta = np.clip(enough * a - mu, 0, 1)
            else:
                alpha = brentq(
                    lambda alpha: np.clip(alpha * a - mu, 0, 1).sum() - k, 0, enough, xtol=1e-300, rtol=1e-15
                )
                theta = np.clip(alpha * a - mu, 0, 1)
        return np.where(theta > 0, a * theta / np.where(theta > 0, theta + mu, 1), 0) * np.sign(x)

    if sized(x, k) <= r:
        return x
    high = np.linalg.norm(x) / r
    return shrunk(brentq(lambda mu: sized(shrunk(mu), k) - r, 0, high, xtol=1e-300, rtol=1e-14))


@pytest.mark.parametrize("k", [1, 2, 5, 11, 12, 40])
@pytest.mark.parametrize("kind", ["gaussian", "ties", "all equal", "heavy tails", "mostly zero"])
def test_norm_and_projection_agree_with_nested_root_finding(kind: str, k: int) -> None:
    x = inputs(12)[kind]
    norms = k_support_norm(x, k)
    assert norms.tolist() == pytest.approx([sized(row, k) for row in x.numpy()], rel=1e-9)
    for r in (0.01, 0.5, 2.0, 0.999 * float(norms.max())):
        w = k_support_projection(x, k, r)
        for row, found in zip(x.numpy(), w.numpy(), strict=True):
            assert found == pytest.approx(nearest(row, k, r), abs=1e-8 * max(r, 1e-3 * np.abs(row).max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1, 2, 7, 300])
def test_the_oracle_certifies_the_projection(p: int, dtype: torch.dtype) -> None:
    """w is the projection of v if and only if no point s of the ball has <v - w, s - w> > 0."""
    kinds = [kind for kind, values in inputs(p).items() for _ in values]
    v = torch.cat(list(inputs(p).values())).to(dtype)
    rounding = 8 if dtype is torch.float32 else 1e4
    for k in {1, 2, p // 3, p - 1, p, p + 3} - {0}:
        for r in (1e-3, 1.0, 30.0):
            D = fedfw.KSupport(k, r)
            w = D.project(v, batch=True)
            assert w.dtype is dtype
            inside = torch.as_tensor(D.contains(w, batch=True))
            assert bool(inside.all()), (list(compress(kinds, ~inside)), k, r)
            apart = v.double() - w.double()
            s = D.lmo(-apart, batch=True, precision=torch.float64).dense(torch.float64)
            excess = (apart * (s - w)).sum(1) / (r * v.double().norm(dim=1)).clamp(min=1e-300)
            refuted = ~(excess <= rounding * torch.finfo(dtype).eps)
            assert not bool(refuted.any()), (list(compress(kinds, refuted)), k, r)


@pytest.mark.parametrize("size", [1e-300, 1e-100, 1e100, 1e300])
@pytest.mark.parametrize("k", [1, 9, 50])
def test_size_does_not_matter(size: float, k: int) -> None:
    x = inputs(50)["gaussian"]
    expected = k_support_projection(x, k, 1.0)
    assert torch.allclose(k_support_projection(x * size, k, size) / size, expected, rtol=0, atol=1e-13)
    assert torch.allclose(k_support_norm(x * size, k) / size, k_support_norm(x, k), rtol=1e-13)


@pytest.mark.parametrize("k", [1, 9, 50])
def test_a_point_from_far_away_stays_in_the_ball(k: int) -> None:
    """Entries of 1e30 are 1e14 apart at least, and what is left of them sums to 1."""
    w = k_support_projection(1e30 * inputs(50)["gaussian"], k, 1.0)
    assert k_support_norm(w, k).tolist() == pytest.approx([1.0] * len(w), rel=1e-12)


def test_a_row_has_the_same_projection_alone_and_in_a_stack() -> None:
    stack = torch.cat(list(inputs(30).values()))
    for k in (1, 4, 29, 30):
        together = k_support_projection(stack, k, 1.5)
        for i in range(len(stack)):
            assert torch.equal(k_support_projection(stack[i : i + 1], k, 1.5)[0], together[i])


def test_points_inside_are_returned_to_the_bit() -> None:
    x = inputs(20)["gaussian"]
    stack = torch.cat([x / 1e3, x])
    assert torch.equal(k_support_projection(stack, 4, 1.0)[: len(x)], stack[: len(x)])


def test_no_combination_of_sparse_points_is_nearer() -> None:
    """The ball is the hull of vectors with k non-zeros, so a projection on the hull of many of them is not nearer."""
    v = inputs(5, rows=1)["gaussian"][0] * 2
    w = k_support_projection(v[None], 2, 1.0)[0]
    directions = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    directions = directions / directions.norm(dim=1, keepdim=True)
    for support in combinations(range(5), 2):
        points = torch.zeros(200, 5, dtype=torch.float64)
        points[:, list(support)] = directions
        for share in (0.01, 0.3):
            mixed = (1 - share) * w + share * points
            assert float((mixed - v).norm(dim=1).min()) >= float((w - v).norm()) - 1e-12
