"""Atoms as integers: sums of encodings decode to the constant times the sum of integers, to the
bit.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfw
from fedfw.secure_sums import AtomEncoding, EncodingError, FixedPointGrid, encode

CASES: list[tuple[Any, tuple[int, ...]]] = [
    (fedfw.L1Ball(0.1), (7,)),
    (fedfw.LinfBall(0.3), (2, 4)),
    (fedfw.Box(-0.1, 0.7), (9,)),
    (fedfw.Box(torch.tensor([0.0, -1.0, 0.3]), torch.tensor([0.1, 2.0, 0.3])), (3,)),
    (fedfw.Simplex(0.7), (6,)),
    (fedfw.CappedSimplex(1.1), (6,)),
    (fedfw.Hypersimplex(3), (8,)),
    (fedfw.KSparse(3, 0.2), (10,)),
    (fedfw.KSparse(5, 0.2), (3,)),
    (fedfw.Birkhoff(), (4, 4)),
]


@pytest.mark.parametrize(("ball", "shape"), CASES)
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_a_sum_decodes_to_the_bit(
    ball: fedfw.ConstraintSet, shape: tuple[int, ...], precision: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(3)
    gradients = torch.randn(11, *shape, generator=generator, dtype=precision)
    encoding = AtomEncoding(ball, shape)
    total: Any = 0
    dense = torch.zeros(shape, dtype=torch.float64)
    integer_sum = torch.zeros(int(np.prod(shape)), dtype=torch.int64)
    for g in gradients:
        atom = fedfw.Atom.from_bytes(ball.lmo(g).to_bytes(), ball, shape)
        integers, scale, low, high = encode(atom, ball)
        assert low <= int(integers.min()) <= int(integers.max()) <= high
        numbers = encoding.to_numbers(integers)
        assert 0 <= numbers.min() <= numbers.max() <= encoding.span
        assert torch.equal(encoding.to_integers(numbers, 1), integers)
        single = encoding.decode(numbers, 1).reshape(shape)
        assert torch.allclose(single, atom.dense(torch.float64), rtol=1e-15, atol=0)
        total = total + numbers
        integer_sum += integers
        dense += atom.dense(torch.float64)
    decoded = encoding.decode(total, 11)
    assert torch.equal(encoding.to_integers(total, 11), integer_sum)
    if not isinstance(ball, fedfw.Box):
        assert torch.equal(decoded, scale * integer_sum.double())
    assert torch.allclose(decoded.reshape(shape), dense, rtol=1e-12, atol=1e-12)
    assert encoding.accepts(total, 11)
    assert encoding.ring(11).modulus > total.max()


@pytest.mark.parametrize(("ball", "shape"), CASES)
def test_a_stack_is_encoded_row_by_row(ball: fedfw.ConstraintSet, shape: tuple[int, ...]) -> None:
    g = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    atoms = ball.lmo(g, batch=True)
    stacked = encode(atoms, ball).integers
    assert stacked.shape == (5, int(np.prod(shape)))
    assert all(torch.equal(encode(atoms[i], ball).integers, stacked[i]) for i in range(5))


def test_what_has_no_exact_encoding_is_refused() -> None:
    g = torch.randn(6)
    for ball in (fedfw.L2Ball(1.0), fedfw.KSupport(2), fedfw.GroupBall(1.0, torch.arange(6) // 2)):
        with pytest.raises(EncodingError, match="not integers"):
            encode(ball.lmo(g), ball)
    for atom, ball in (
        (fedfw.L1Ball(1.0).lmo(g), fedfw.L1Ball(2.0)),
        (fedfw.L1Ball(1.0).lmo(g), fedfw.Simplex(1.0)),
        (fedfw.KSparse(3, 1.0).lmo(g), fedfw.L1Ball(1.0)),
        (fedfw.LinfBall(1.0).lmo(g), fedfw.L1Ball(1.0)),
        (fedfw.L1Ball(1.0).lmo(g), fedfw.Box(0.0, 1.0)),
    ):
        with pytest.raises(EncodingError, match="none of"):
            encode(atom, ball)
    with pytest.raises(EncodingError, match="shape"):
        AtomEncoding(fedfw.L1Ball(1.0), (7,)).encode(fedfw.L1Ball(1.0).lmo(g))


def test_sums_that_no_atoms_of_the_set_have_are_seen() -> None:
    simplex = AtomEncoding(fedfw.Simplex(1.0), (4,))
    assert simplex.accepts(np.array([2, 1, 0, 0]), 3)
    assert not simplex.accepts(np.array([2, 2, 0, 0]), 3)
    assert not simplex.accepts(np.array([4, 0, 0, 0]), 3)
    ball = AtomEncoding(fedfw.L1Ball(1.0), (3,))
    assert not ball.accepts(np.array([6, 6, 3]), 3)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(-30, 30),
    st.integers(1, 1000),
    st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=1, max_size=9),
)
def test_grids_sum_exactly_and_round_by_half_a_step(
    exponent: int, steps: int, rows: list[list[float]]
) -> None:
    quantum = 2.0**exponent
    grid = FixedPointGrid(steps * quantum, quantum)
    vectors = [torch.tensor(row, dtype=torch.float64) * steps * quantum for row in rows]
    total = sum(grid.to_numbers(grid.encode(x)) for x in vectors)
    rounded = [grid.decode(grid.to_numbers(grid.encode(x)), 1) for x in vectors]
    for x, near in zip(vectors, rounded, strict=True):
        assert bool(((x - near).abs() <= quantum / 2).all())
    assert torch.equal(grid.decode(total, len(rows)), torch.stack(rounded).sum(0))
    assert grid.ring(len(rows)).modulus > total.max()


def test_grids_refuse_what_they_cannot_hold() -> None:
    for bound, quantum in ((1.0, 0.3), (1.0, 0.0), (0.1, 1.0), (1e30, 1.0), (1.0, float("nan"))):
        with pytest.raises(EncodingError):
            FixedPointGrid(bound, quantum)
    grid = FixedPointGrid(1.0, 0.25)
    for x in (1.5, -2.0, float("nan"), float("inf")):
        with pytest.raises(EncodingError, match="beyond the bound"):
            grid.encode(torch.tensor([x]))
