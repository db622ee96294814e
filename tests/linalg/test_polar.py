"""Polar factors against numpy's SVD: what is returned lies inside the ball, and what is proven is true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fedfw.linalg import polar
from fedfw.linalg.polar import LEAST_TOL, STEPS, Polar, polar_factor
from tests.linalg.test_singular import with_spectrum


def gaussian(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MATRICES = {
    "gaussian": gaussian(60, 60),
    "wide": gaussian(20, 90),
    "tall": gaussian(90, 50),
    "very tall": gaussian(300, 8),
    "one row": gaussian(1, 40),
    "one column": gaussian(40, 1),
    "one entry": gaussian(1, 1),
    "rank one": with_spectrum([3.0], 50, 40),
    "rank ten": with_spectrum([1.0] * 10, 50, 60),
    "equal": with_spectrum([2.0] * 40, 40, 40),
    "geometric": with_spectrum(list(np.geomspace(1, 1e-12, 64)), 64, 64),
    "geometric, wide": with_spectrum(list(np.geomspace(1, 1e-12, 30)), 30, 90),
    "a peak over noise": with_spectrum([1.0] + [1e-5] * 63, 64, 64),
    "nearly singular": with_spectrum([1.0] * 63 + [1e-7], 64, 64),
    "ones": torch.ones(30, 40, dtype=torch.float64),
    "identity": torch.eye(30, dtype=torch.float64),
    "zero": torch.zeros(20, 30, dtype=torch.float64),
    "tiny": 1e-30 * gaussian(40, 40, 1),
    "huge": 1e30 * gaussian(40, 40, 2),
    "mixed sizes": gaussian(40, 40, 3) * torch.logspace(-12, 0, 40, dtype=torch.float64),
}


@pytest.fixture(autouse=True)
def _iterate_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polar, "SVD_UP_TO", 0)


class Launches(TorchDispatchMode):
    """The names of the operations that compute or copy, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._counts = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._counts = False
        yield
        self._counts = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._counts and not func.is_view:
            self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def decomposed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many matrices each decomposition was given."""
    counts: list[int] = []
    by_svd = polar._by_svd

    def counted(g: torch.Tensor) -> Polar:
        counts.append(len(g))
        return by_svd(g)

    monkeypatch.setattr(polar, "_by_svd", counted)
    return counts


def sigma(matrix: torch.Tensor) -> np.ndarray:
    return np.linalg.svd(matrix.double().numpy(), compute_uv=False)


def check(g: torch.Tensor, found: Polar, tol: float) -> None:
    """Inside, as good as asked for, and with a bound that is true: all against numpy in float64."""
    for one, s, value, upper, error in zip(g, found.s, found.value, found.upper, found.error, strict=True):
        nuclear = float(sigma(one).sum())
        assert sigma(s)[0] < 1
        assert float((one.double() * s).sum()) >= (1 - tol) * nuclear
        assert float(value) == pytest.approx(float((one.double() * s).sum()), rel=1e-9)
        assert float(upper) >= nuclear
        assert float(error) <= tol
        assert float(upper) - float(value) <= tol * float(upper)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tol", [1e-2, 1e-3, LEAST_TOL, 1e-6])
@pytest.mark.parametrize("name", MATRICES)
def test_inside_and_proven(name: str, tol: float, dtype: torch.dtype) -> None:
    g = MATRICES[name].to(dtype)[None]
    check(g, polar_factor(g, tol), tol)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 24),
    columns=st.integers(1, 60),
    decades=st.floats(0, 14),
    rank=st.integers(1, 24),
    power=st.integers(-90, 90),
    seed=st.integers(0, 10**6),
    tol=st.sampled_from([1e-1, 1e-2, 1e-3, 1e-4]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_spectrum(
    rows: int, columns: int, decades: float, rank: int, power: int, seed: int, tol: float, dtype: torch.dtype
) -> None:
    values = list(np.geomspace(1, 10**-decades, min(rank, rows, columns)))
    g = (with_spectrum(values, rows, columns, seed) * 2.0**power).to(dtype)[None]
    check(g, polar_factor(g, tol), tol)


def test_ordinary_matrices_need_no_decomposition(decomposed: list[int]) -> None:
    for name in ("gaussian", "wide", "tall", "one row", "rank one", "rank ten", "equal", "geometric", "zero", "huge"):
        polar_factor(MATRICES[name].float()[None], 1e-3)
    assert decomposed == []


def test_only_what_misses_the_tolerance_is_decomposed(decomposed: list[int]) -> None:
    hard, easy = MATRICES["a peak over noise"], gaussian(64, 64, 5)
    stack = torch.stack([easy, hard, 2 * easy, hard, torch.zeros_like(easy)]).float()
    check(stack, polar_factor(stack, 1e-4), 1e-4)
    assert decomposed == [1, 1]
    # The iterations of a GPU treat a stack as a whole, and its decompositions too.
    decomposed.clear()
    check(stack, polar._by_iterations(stack, 1e-4, torch.clone), 1e-4)
    assert decomposed == [2]


def test_without_a_tolerance_the_answer_is_exact(decomposed: list[int]) -> None:
    g = MATRICES["gaussian"][None]
    found = polar_factor(g)
    u, _, vh = np.linalg.svd(g[0].numpy())
    assert decomposed == [1]
    assert np.allclose(found.s[0].numpy(), u @ vh, atol=1e-9)
    check(g, found, 1e-8)


@pytest.mark.parametrize("shape", [(40, 40), (30, 90), (90, 30)])
def test_next_to_nothing_is_left_outside_of_the_recording(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU replays `_candidates` as one graph; what Python launches besides, and waits for, is counted here."""
    launched, waited = Launches(), polar._candidates

    def recorded(*inputs: Any) -> Any:
        with launched.paused():
            return waited(*inputs)

    monkeypatch.setattr(polar, "_candidates", recorded)
    g = gaussian(*shape)[None]
    with launched:
        found = polar_factor(g, 1e-3, torch.neg)
    assert launched.names == ["aten.full", "aten.all", "aten._local_scalar_dense"]
    check(g, replace(found, s=-found.s), 1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(40, 40), (30, 90)])
def test_no_proof_holds_for_what_is_not_finite(shape: tuple[int, int], dtype: torch.dtype, bad: float) -> None:
    g = gaussian(*shape).to(dtype).repeat(3, 1, 1)
    g[1, 5, 7] = bad
    _, good = polar._candidates(g, torch.tensor(1e-1, dtype=torch.float64), torch.clone)
    assert good.tolist() == [True, False, True]


@pytest.mark.parametrize("wrong", ["huge", "flipped", "outside", "nan", "zero"])
def test_a_wrong_candidate_proves_nothing_false(wrong: str) -> None:
    g = gaussian(30, 30)
    u, values, vh = torch.linalg.svd(g)
    signs = torch.ones(30, dtype=torch.float64)
    signs[3] = -1
    candidate = {
        "huge": 1e3 * u @ vh,
        "flipped": u @ torch.diag(signs) @ vh,
        "outside": u @ torch.diag(1 + 0.9 * torch.linspace(0, 1, 30, dtype=torch.float64)) @ vh,
        "nan": torch.full_like(g, torch.nan),
        "zero": torch.zeros_like(g),
    }[wrong]
    found = polar._proven(g[None], candidate[None], torch.tensor(1e-3))
    assert not bool(found.error <= 1e-3)
    assert not bool(found.upper < values.sum())
    if bool(found.upper.isfinite()):
        assert sigma(found.s[0])[0] < 1


def test_a_stack_gives_the_bits_of_its_matrices() -> None:
    G = torch.stack([gaussian(70, 50, seed) for seed in range(3)]).float()
    together = polar_factor(G, 1e-3)
    for i in range(3):
        alone = polar_factor(G[i : i + 1], 1e-3)
        assert torch.equal(alone.s[0], together.s[i])
        assert torch.equal(alone.upper[0], together.upper[i])


def test_a_power_of_two_changes_no_bit() -> None:
    g = gaussian(50, 60).float()[None]
    plain = polar_factor(g, 1e-3)
    for power in (-90, -3, 60):
        scaled = polar_factor(g * 2.0**power, 1e-3)
        assert torch.equal(scaled.s, plain.s)
        assert torch.equal(scaled.upper, plain.upper * 2.0**power)


def test_the_steps_do_what_their_comment_says() -> None:
    x = np.concatenate([np.linspace(0, 1, 10**5), np.geomspace(1e-12, 1, 10**5)])
    y = x
    for a, b, c in STEPS:
        y = a * y + b * y**3 + c * y**5
    assert y.min() >= 0
    assert y.max() <= 1 + 1e-4
    assert y[x >= 1e-4].min() >= 1 - 1e-4
