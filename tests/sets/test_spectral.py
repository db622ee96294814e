"""The oracles of spectral sets at a tolerance: inside in every precision, as good as asked for, with a true bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedfw
from fedfw.linalg import polar
from fedfw.sets.product import BoundProduct

SHAPES = [(60, 60), (20, 90), (90, 30), (12, 3, 5, 2), (1, 7), (7, 1)]
SETS = [fedfw.SpectralBall(1.0), fedfw.SpectralBall(0.1), fedfw.SpectralBall(700.0), fedfw.PartialIsometry(10**6, 3.0)]


@pytest.fixture(autouse=True)
def _iterate_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polar, "SVD_UP_TO", 0)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sigma(x: torch.Tensor) -> np.ndarray:
    return np.linalg.svd(x.double().flatten(1).numpy(), compute_uv=False)


@pytest.mark.parametrize("precision", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("tol", [None, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("shape", SHAPES)
def test_decoded_atoms_are_inside_and_their_bounds_true(
    shape: tuple[int, ...], tol: float | None, precision: torch.dtype
) -> None:
    for dtype in (torch.float32, torch.float64):
        G = gaussian(2, *shape).to(dtype)
        norms = [float(sigma(g).sum()) for g in G]
        for D in SETS:
            atoms = D.lmo(G, batch=True, precision=precision, tol=tol)
            for g, nuclear, atom in zip(G, norms, atoms, strict=True):
                received = fedfw.Atom.from_bytes(atom.to_bytes(), D, shape)
                assert D.accepts(received, shape)
                assert D.accepts(received, shape, tol=0.0)
                for wide in (None, torch.float64):
                    assert sigma(received.dense(wide))[0] <= D.r
                assert float(atom.bound[0]) <= -D.r * nuclear
                assert float(atom.bound[0]) >= -D.r * nuclear * (1 + (tol or 1e-8))
                lost = (tol or 0) + 4 * min(g.flatten(1).shape) ** 0.5 * torch.finfo(precision).eps + 1e-8
                assert float(atom.dot(g)) <= -D.r * nuclear * (1 - lost)


@pytest.mark.parametrize("precision", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("tol", [None, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize(("shape", "k"), [((20, 90), 3), ((90, 30), 5), ((9, 9), 7), ((30, 30), 20), ((12, 3, 5), 2)])
def test_partial_isometries_too(shape: tuple[int, ...], k: int, tol: float | None, precision: torch.dtype) -> None:
    D = fedfw.PartialIsometry(k, 0.3)
    for dtype in (torch.float32, torch.float64):
        g = gaussian(*shape).to(dtype)
        best = float(sigma(g)[:k].sum())
        atom = D.lmo(g, precision=precision, tol=tol)
        received = fedfw.Atom.from_bytes(atom.to_bytes(), D, shape)
        assert D.accepts(received, shape)
        values = sigma(received.dense(torch.float64))
        assert values[0] <= 0.3
        assert values.sum() <= k * 0.3
        assert -D.r * best * (1 + (tol or 1e-8)) <= float(atom.bound[0]) <= -D.r * best
        assert float(atom.dot(g)) <= -D.r * best * (1 - (tol or 0) - 8 * k**0.5 * torch.finfo(precision).eps - 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_direction_gives_a_point_of_the_set(dtype: torch.dtype) -> None:
    atom = fedfw.SpectralBall(2.0).lmo(torch.zeros(50, 60, dtype=dtype), tol=1e-3)
    assert fedfw.SpectralBall(2.0).accepts(atom, (50, 60))
    assert float(atom.bound[0]) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    G = torch.ones(3, 50, 60)
    G[1, 2, 3] = bad
    with pytest.raises(fedfw.NonFiniteError) as caught:
        fedfw.SpectralBall(1.0).lmo(G, batch=True, tol=1e-3)
    assert caught.value.rows == (1,)


class Counted(fedfw.SpectralBall):
    """A spectral ball that notes how many matrices each call of its oracle was given."""

    calls: list[int] = []  # noqa: RUF012

    def _lmo(self, g, shape, request):  # type: ignore[no-untyped-def]
        self.calls.append(len(g))
        return super()._lmo(g, shape, request)


@pytest.mark.parametrize("tol", [None, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_blocks_share_a_call_and_keep_their_atoms(dtype: torch.dtype, tol: float | None) -> None:
    shapes = {"a": (30, 40), "bias": (40,), "b": (30, 40), "c": (40, 30), "d": (30, 40)}
    sets = {"bias": fedfw.LinfBall(1.0), "d": Counted(2.0), "*": Counted(1.0)}
    product = fedfw.Product(sets).bind(shapes)
    G = gaussian(3, product.fixed_size or 0).to(dtype)
    Counted.calls.clear()
    atoms = product.lmo(G, batch=True, tol=tol)
    assert sorted(Counted.calls) == [3, 3, 6]
    bounds = torch.zeros(3, dtype=torch.float64)
    for part, D, shape, piece in zip(atoms.parts, product.parts, product.shapes, product._pieces(G), strict=True):
        alone = D.lmo(piece.reshape(3, *shape), batch=True, tol=tol)
        assert torch.equal(part.dense(), alone.dense())
        bounds += alone.dot(piece.reshape(3, *shape)) if alone.bound is None else alone.bound
    assert torch.allclose(atoms.bound, bounds, rtol=1e-12)
    for atom in atoms:
        received = fedfw.Atom.from_bytes(atom.to_bytes(), product, (product.fixed_size,))
        assert product.accepts(received, (product.fixed_size,))


def test_other_sets_are_asked_one_parameter_at_a_time() -> None:
    ball = fedfw.NuclearBall(1.0)
    product = BoundProduct(("a", "b"), (ball, ball), ((5, 6), (5, 6)))
    assert product._calls() == [[0], [1]]
