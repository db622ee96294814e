"""Which sets lie inside which: what is said to be proven is so, and what is not so is refuted."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch

import fedfw
from fedfw.sets import SETS, ConstraintSet
from fedfw.sets.containment import contains_set

P = 6
PROVEN: list[tuple[ConstraintSet, ConstraintSet]] = [
    (fedfw.L2Ball(1.0), fedfw.L1Ball(1.0)),
    (fedfw.LinfBall(1.0), fedfw.L2Ball(1.0)),
    (fedfw.L1Ball(2.0), fedfw.L1Ball(1.0)),
    (fedfw.KSparse(3, 1.0), fedfw.L1Ball(1.0)),
    (fedfw.KSparse(3, 1.0), fedfw.KSparse(2, 1.0)),
    (fedfw.KSupport(2, 1.0), fedfw.L1Ball(1.0)),
    (fedfw.KSupport(2, 1.5), fedfw.KSupport(2, 1.0)),
    (fedfw.GroupBall(2.0, torch.arange(P) // 2), fedfw.GroupBall(1.0, torch.arange(P) // 2)),
    (fedfw.L2Ball(P**0.5), fedfw.LinfBall(1.0)),
    (fedfw.Box(-1.0, 2.0), fedfw.Box(torch.full((P,), -1.0), torch.arange(P) / 3)),
    (fedfw.Box(0.0, 1.0), fedfw.Hypersimplex(2)),
    (fedfw.Box(-1.0, 1.0), fedfw.L2Ball(1.0)),
    (fedfw.L1Ball(1.0), fedfw.Simplex(1.0)),
    (fedfw.CappedSimplex(2.0), fedfw.Hypersimplex(2)),
    (fedfw.CappedSimplex(1.0), fedfw.CappedSimplex(0.5)),
    (fedfw.LinfBall(1.0), fedfw.Box(0.0, 1.0)),
]


@pytest.mark.parametrize("pair", PROVEN, ids=str)
def test_what_norms_prove(pair: tuple[ConstraintSet, ConstraintSet]) -> None:
    larger, smaller = pair
    assert contains_set(larger, smaller, (P,)) is True
    assert contains_set(smaller, larger, (P,)) is False


def test_matrices_and_products() -> None:
    layer = torch.nn.Linear(4, 3)
    nuclear, spectral = fedfw.NuclearBall(1.0).bind(layer), fedfw.SpectralBall(1.0).bind(layer)
    both = fedfw.PartialIsometry(2, 1.0).bind(layer)
    for larger, smaller in ((spectral, nuclear), (both, nuclear), (spectral, both), (fedfw.L2Ball(1.0), nuclear)):
        assert contains_set(larger, smaller, (15,)) is True
        assert contains_set(smaller, larger, (15,)) is False

    def parts(r: float) -> ConstraintSet:
        return fedfw.Product({"weight": fedfw.NuclearBall(r), "*": fedfw.L1Ball(r)}).bind(layer)

    assert contains_set(parts(2.0), parts(1.0), (15,)) is True
    assert contains_set(parts(1.0), parts(2.0), (15,)) is False
    assert contains_set(fedfw.L2Ball(1.5), parts(1.0), (15,)) is True


def test_what_is_not_known_is_not_said_to_be_proven() -> None:
    cross = fedfw.Hull(torch.cat([torch.eye(P), -torch.eye(P)]))  # the l1 ball, as points
    assert contains_set(cross, fedfw.L1Ball(1.0), (P,)) is None

    class Positive(fedfw.L1Ball):
        """Its points are not all of the l1 ball's."""

    assert contains_set(Positive(1.0), fedfw.L1Ball(0.5), (P,)) is None


@cache
def every_pair_that_is_proven() -> list[tuple[ConstraintSet, ConstraintSet]]:
    layer = torch.nn.Linear(3, 4, bias=False)
    sets = [entry.example((4, 3)) for name, entry in SETS.items() if name not in ("birkhoff", "spectrahedron")]
    pairs = itertools.permutations([one.bind(layer) for one in sets], 2)
    return [(larger, smaller) for larger, smaller in pairs if contains_set(larger, smaller, (12,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_point_of_a_contained_set_lies_outside(dtype: torch.dtype) -> None:
    """Every set beside every other one: points of what is said to lie inside do."""
    generator, proven = torch.Generator().manual_seed(0), every_pair_that_is_proven()
    for larger, smaller in proven:
        atoms = smaller.lmo(torch.randn(50, 12, generator=generator, dtype=dtype), batch=True).dense(dtype)
        assert bool(torch.as_tensor(larger.contains(atoms, batch=True)).all()), (larger, smaller)
    assert len(proven) > 20
