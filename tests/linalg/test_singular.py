"""Top singular pairs against numpy's SVD, on the spectra that break naive iterations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedfw.linalg import singular
from fedfw.linalg.singular import top_singular


def with_spectrum(sigma: list[float], rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    u, _ = torch.linalg.qr(torch.randn(rows, len(sigma), generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(columns, len(sigma), generator=generator, dtype=torch.float64))
    return u @ torch.diag(torch.tensor(sigma, dtype=torch.float64)) @ v.T


MATRICES = {
    "gaussian": torch.randn(80, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    "rank one": with_spectrum([3.0], 70, 50),
    "rank two": with_spectrum([3.0, 1.0], 50, 70),
    "clustered": with_spectrum([1.0, 1 - 1e-9, 1 - 1e-7, 0.9999] + [0.99] * 20, 60, 60),
    "equal": with_spectrum([2.0] * 40, 40, 40),
    "decaying": with_spectrum([2.0**-j for j in range(40)], 90, 45),
    "zero": torch.zeros(40, 50, dtype=torch.float64),
    "one row": torch.randn(1, 200, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
    "one column": torch.randn(200, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64),
    "huge": 1e200 * with_spectrum([3.0, 2.0, 1.0], 40, 40),
    "tiny": 1e-200 * with_spectrum([3.0, 2.0, 1.0], 40, 40),
}


@pytest.fixture(autouse=True)
def _lanczos_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(singular, "DENSE_UP_TO", 0)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", MATRICES)
def test_value_vectors_and_bound(name: str, dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(singular, "DENSE_UP_TO", 10**9 if dense else 0)
    g = MATRICES[name]
    pair = top_singular(g[None], tol=1e-9)
    sigma = float(np.linalg.svd(g.numpy(), compute_uv=False)[0])
    assert float(pair.value[0]) == pytest.approx(sigma, rel=1e-7)
    assert float(pair.u.norm()) == pytest.approx(1.0)
    assert float(pair.v.norm()) == pytest.approx(1.0)
    scale = sigma or 1.0
    assert float(pair.u[0] @ (g / scale) @ pair.v[0]) == pytest.approx(sigma / scale, abs=1e-7)
    assert float(pair.upper[0]) >= sigma * (1 - 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bound_is_true_even_when_stopped_early(dtype: torch.dtype) -> None:
    G = torch.randn(20, 90, 70, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    G[10:] = torch.stack([with_spectrum([5.0, 1.0, 0.1], 90, 70, seed) for seed in range(10)])
    sigma = torch.linalg.matrix_norm(G, ord=2)
    for tol in (0.3, 1e-2, 1e-4):
        pair = top_singular(G.to(dtype), tol=tol)
        assert bool((pair.upper >= sigma * (1 - 1e-7)).all())
        assert bool((pair.value <= sigma * (1 + 1e-6)).all())
    # Where the rest is small the bound is tight.
    assert float((pair.upper[10:] / sigma[10:]).max()) < 1.03


def test_tolerance_is_kept_and_looser_ones_take_fewer_steps() -> None:
    G = torch.randn(8, 120, 120, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    sigma = torch.linalg.matrix_norm(G, ord=2)
    steps = []
    for tol in (1e-2, 1e-4, 1e-8):
        pair = top_singular(G, tol=tol)
        assert float((1 - pair.value / sigma).max()) <= 2 * tol
        steps.append(pair.steps)
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]


DOMINATED = [3.0, *np.linspace(0.4, 0.0, 50)]  # sigma_1 is so large that the Frobenius norm proves much


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sides", [(80, 60), (60, 80)])
def test_warm_start_takes_fewer_steps(dtype: torch.dtype, sides: tuple[int, int]) -> None:
    g = with_spectrum(DOMINATED, *sides)[None]
    cold = top_singular(g.to(dtype), tol=1e-3)
    moved = g + 1e-3 * torch.randn(g.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    warm = top_singular(moved.to(dtype), tol=1e-3, start=cold.v)
    assert warm.steps == 1 < cold.steps
    sigma = float(torch.linalg.matrix_norm(moved, ord=2))
    assert float(warm.value) >= (1 - 1e-3) * float(warm.upper) >= (1 - 1e-3) * sigma * (1 - 1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_steps_are_taken_only_with_a_proof(dtype: torch.dtype) -> None:
    for top in (0.3, 0.8, 1.5, 3.0, 30.0):
        g = with_spectrum([top, *np.linspace(0.4, 0.0, 50)], 90, 70)
        pair = top_singular(g[None].to(dtype), tol=1e-3)
        proven = float(1 - pair.value / pair.upper)
        assert (pair.steps >= 8) or proven <= 1e-3
        assert float(pair.upper) >= float(torch.linalg.matrix_norm(g, ord=2)) * (1 - 1e-7)
    assert pair.steps < 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["gaussian", "clustered", "decaying", "rank two", "dominated", "equal"])
def test_no_start_spoils_the_answer(name: str, dtype: torch.dtype) -> None:
    """A start gives what is proven, or what no start gives, to the bit: even one at another pair, or of zeros."""
    g = with_spectrum(DOMINATED, 80, 60) if name == "dominated" else MATRICES[name]
    _, sigma, vh = torch.linalg.svd(g, full_matrices=False)
    starts = [vh[1], vh[-1], vh[1] + vh[2], vh[0] + 1e-6 * vh[1], torch.zeros_like(vh[0]), torch.ones_like(vh[0])]
    cold = top_singular(g[None].to(dtype), tol=1e-3)
    for start in starts:
        warm = top_singular(g[None].to(dtype), tol=1e-3, start=start[None])
        assert float(warm.value) >= (1 - 1e-3) * float(sigma[0])
        if warm.steps != 1:
            assert torch.equal(warm.u, cold.u)
            assert torch.equal(warm.v, cold.v)


def test_a_warm_start_orthogonal_to_the_answer_still_finds_it() -> None:
    g = torch.diag(torch.linspace(1, 2, 40, dtype=torch.float64))[None]
    start = torch.eye(40, dtype=torch.float64)[:1]  # the smallest singular vector
    assert float(top_singular(g, tol=1e-8, start=start).value[0]) == pytest.approx(2.0, rel=1e-7)


def test_one_matrix_does_not_change_the_answer_of_another() -> None:
    G = torch.randn(5, 60, 60, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    together = top_singular(G, tol=1e-3)
    for i in range(5):
        alone = top_singular(G[i : i + 1], tol=1e-3)
        assert torch.allclose(alone.u[0], together.u[i], atol=1e-10)


def test_a_warm_start_at_what_is_now_the_second_pair() -> None:
    bulk = list(np.linspace(0.9, 0.01, 200))
    old, new = (with_spectrum([*top, *bulk], 300, 300) for top in ([0.95, 1.0], [1.0, 0.95]))
    warm = top_singular(old[None], tol=1e-8).v
    assert float(top_singular(new[None], tol=1e-3, start=warm).value[0]) == pytest.approx(1.0, rel=2e-3)


def test_float32_bound_holds_for_rank_one() -> None:
    generator = torch.Generator().manual_seed(0)
    g = torch.outer(torch.randn(1000, generator=generator), torch.randn(1000, generator=generator))
    pair = top_singular(g[None], tol=1e-3)
    assert float(pair.upper[0]) >= float(torch.linalg.matrix_norm(g.double(), ord=2))
