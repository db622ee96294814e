"""Every compressor is the contraction that it says it is, comes back to the bit, and refuses what is no message."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedfw
from fedfw.atoms import Atom
from fedfw.atoms.base import read_framed, stack_atoms
from fedfw.atoms.bits import Reader
from fedfw.compression import Bits, Compressor, Pursuit, RandK, Rank, Sign, TopK, make_compressor
from fedfw.errors import AtomError
from fedfw.sets.base import ConstraintSet, Shape

DTYPES = [torch.float32, torch.float64]
ROUNDED = 1 - 2.0**-16
"""What rounding to bfloat16 leaves of a contraction."""


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Tensor, tuple[int, ...]]:
    """Two rows of numbers of different sizes, zeros among them, and the pieces that they consist of."""
    sizes = tuple(draw(st.lists(st.integers(1, 300), min_size=1, max_size=3)))
    dtype, seed = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, sum(sizes), generator=generator, dtype=torch.float64)
    x = x * 10.0 ** (draw(st.sampled_from([0.0, 4.0])) * torch.rand(x.shape, generator=generator, dtype=torch.float64))
    x[torch.rand(x.shape, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))] = 0
    return (x * 10.0 ** draw(st.sampled_from([-30, -3, 0, 3, 30]))).to(dtype), sizes


def exchanged(compressor: Compressor, x: Tensor, pieces: Sequence[int], draw: int = 0) -> Tensor:
    """What the receiver decodes, (n, p): to the bit what the sender holds, from the bytes that are counted."""
    shape = (x.shape[1],)
    sent = compressor.encode(x, shape, pieces, draw=draw)
    readers = compressor.readers(shape, pieces, draw=draw)
    back, messages = [], [one.to_bytes() for one in sent]
    for one, data in zip(sent, messages, strict=True):
        assert len(data) == one.nbytes
        reader = Reader(data)
        back.append(read_framed(reader, readers))
        reader.finish()
        assert back[-1].to_bytes() == data
        for dtype in DTYPES:
            assert torch.equal(back[-1].dense(dtype), one.dense(dtype))
    together = stack_atoms(back)
    assert sent.nbytes == together.nbytes
    # A stack and its rows have the same bits: a client encodes alone what a simulator encodes for all.
    alone = [compressor.encode(row[None], shape, pieces, draw=draw)[0].to_bytes() for row in x]
    assert alone == messages
    assert torch.equal(together.dense(x.dtype), sent.dense(x.dtype))
    return sent.dense(torch.float64)


def left_over(compressor: Compressor, x: Tensor, pieces: Sequence[int], draw: int = 0) -> Tensor:
    """||C(v) - v||^2 / ||v||^2 of the rows, (n,); 0 for zeros."""
    v = x.double()
    off = (exchanged(compressor, x, pieces, draw) - v).square().sum(1)
    return torch.where(v.square().sum(1) > 0, off / v.square().sum(1), off)


SLACK = 1e-6
"""For the rounding of float32."""


@given(vectors(), st.sampled_from([1, 2, 7, 64, 10**6]))
@settings(max_examples=60, deadline=None)
def test_the_k_largest_numbers(case: tuple[Tensor, tuple[int, ...]], k: int) -> None:
    x, pieces = case
    alpha = min(1.0, k / x.shape[1]) * ROUNDED
    assert bool((left_over(TopK(k), x, pieces) <= 1 - alpha + SLACK).all())
    kept = TopK(k).encode(x, (x.shape[1],), pieces).dense(x.dtype)
    least = torch.where(kept != 0, kept.abs(), torch.inf).amin(1)
    lost = torch.where(kept == 0, x.abs(), 0.0).amax(1)
    assert bool((lost <= least * (1 + 1 / 256)).all())  # nothing larger than what was sent stays behind


@given(vectors(), st.sampled_from([1, 5, 10**6]), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_drawn_numbers_never_take_away_from_the_others(case: tuple[Tensor, tuple[int, ...]], k: int, draw: int) -> None:
    x, pieces = case
    assert bool((left_over(RandK(k), x, pieces, draw) <= 1 + SLACK).all())
    count = min(k, x.shape[1])
    assert RandK(k).encode(x, (x.shape[1],), pieces, draw=draw)[0].nbytes == 1 + 2 * count  # nothing says where


@pytest.mark.parametrize("dtype", DTYPES)
def test_drawn_numbers_are_a_contraction_in_the_mean(dtype: torch.dtype) -> None:
    x = torch.randn(1, 11, generator=torch.Generator().manual_seed(3), dtype=dtype)
    for k in (1, 4, 11):
        left = torch.cat([left_over(RandK(k), x, (11,), draw) for draw in range(500)])
        assert float(left.mean()) == pytest.approx(1 - k / 11, abs=0.04)


@given(vectors())
@settings(max_examples=40, deadline=None)
def test_signs_are_the_contraction_of_the_mean_magnitude(case: tuple[Tensor, tuple[int, ...]]) -> None:
    x, pieces = case
    left = left_over(Sign(), x, pieces)
    assert bool((left <= 1 - 1 / max(pieces) + SLACK).all())
    v = x.double()
    exact = v.square().sum(1) - sum(piece.abs().sum(1) ** 2 / piece.shape[1] for piece in v.split(list(pieces), 1))
    assert torch.allclose(left * v.square().sum(1), exact, rtol=1e-4, atol=1e-5 * float(v.square().sum()))


@given(vectors(), st.sampled_from([2, 4, 8]))
@settings(max_examples=40, deadline=None)
def test_few_bits_are_a_contraction(case: tuple[Tensor, tuple[int, ...]], bits: int) -> None:
    x, pieces = case
    left = left_over(Bits(bits), x, pieces)
    assert bool((left <= 1 - 1 / 128 + SLACK).all())
    assert bits < 8 or bool((left <= 64 / 127**2 + SLACK).all())


SHAPES: list[tuple[Shape, ...]] = [((3, 5),), ((12, 7), (12,)), ((4, 3, 5), (2,), (40, 6)), ((9, 9),)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("r", [1, 2])
def test_matrices_of_low_rank_are_a_contraction(r: int, shapes: tuple[Shape, ...], dtype: torch.dtype) -> None:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    compressor = Rank(r).bind(fedfw.L2Ball(1.0), shapes) if r == 1 else Rank(r, shapes)
    shorter = max(min(shape[0], torch.Size(shape[1:]).numel()) for shape in shapes if len(shape) > 1)
    for seed, size in ((0, 1e-30), (1, 1.0), (2, 1e10), (3, 0.0)):
        generator = torch.Generator().manual_seed(seed)
        x = (size * torch.randn(3, sum(sizes), generator=generator, dtype=torch.float64)).to(dtype)
        assert bool((left_over(compressor, x, sizes) <= 1 - r / shorter * (1 - 2.0**-6) + SLACK).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sides", [(20, 30), (30, 20), (150, 200)])
def test_a_matrix_of_low_rank_is_sent_as_it_is(sides: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(side, 2, generator=generator, dtype=torch.float64) for side in sides)
    x = (left @ right.T).reshape(1, -1).to(dtype)
    sent = Rank(3, (sides,)).encode(x, (x.shape[1],), (x.shape[1],))
    assert float((sent.dense(torch.float64) - x).norm()) < 0.01 * float(x.norm())
    assert sent.nbytes == 2 + 2 * 3 * sum(sides)


def test_models_without_a_matrix_have_no_rank() -> None:
    with pytest.raises(ValueError, match=r"compress='rank:2', expected another one: no parameter is a matrix .*\(5,\)"):
        Rank(2).bind(fedfw.L2Ball(1.0), [(5,)])


GROUPS = torch.arange(12) % 4
PURSUED: dict[str, tuple[ConstraintSet, int | None]] = {
    "l1": (fedfw.L1Ball(3.0), 12),
    "group": (fedfw.GroupBall(5.0, GROUPS), 4),
    "nuclear": (fedfw.NuclearBall(2.0).bind({"w": (3, 4)}), 3),
    "[W|b]": (fedfw.NuclearBall(2.0).bind({"w": (3, 3), "b": (3,)}), 3),
    "l2": (fedfw.L2Ball(0.1), 1),
    "simplex": (fedfw.Simplex(2.0), 12),
    "linf": (fedfw.LinfBall(1.0), None),
    "product": (fedfw.Product({"w": fedfw.L1Ball(1.0), "b": fedfw.Simplex(1.0)}).bind({"w": (8,), "b": (4,)}), 8),
}
"""Sets, and of how many atoms the best one keeps its share of any vector."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("r", [1, 3])
@pytest.mark.parametrize("name", PURSUED)
def test_atoms_of_the_set_are_a_contraction(name: str, r: int, dtype: torch.dtype) -> None:
    constraint, of = PURSUED[name]
    compressor = Pursuit(r).bind(constraint, ())
    for seed, size in ((0, 1e-10), (1, 1.0), (2, 1e10), (3, 0.0), (4, -1.0)):
        x = size * torch.randn(3, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        x = -x.abs() if size < 0 else x  # for a simplex, whose atoms are positive
        left = left_over(compressor, x.to(dtype), (12,))
        bound = 1.0 if of is None else (1 - (1 - 2.0**-7) / of) ** r
        assert bool((left <= bound + SLACK).all())


def test_atoms_of_an_l1_ball_are_the_largest_numbers() -> None:
    x = torch.randn(2, 30, generator=torch.Generator().manual_seed(1))
    atoms = Pursuit(4, fedfw.L1Ball(7.0)).encode(x, (30,), (30,)).dense()
    assert torch.allclose(atoms, TopK(4).encode(x, (30,), (30,)).dense(), rtol=2.0**-7)


def test_atoms_need_a_set() -> None:
    with pytest.raises(ValueError, match="compress='atoms:4' has no set yet"):
        Pursuit(4).encode(torch.ones(1, 3), (3,), (3,))


ALL = ["topk:5", "topk:400", "randk:5", "bits:4", "sign", "rank:1", "atoms:3"]


def made(text: str) -> Compressor:
    compressor = make_compressor(text)
    assert compressor is not None
    return compressor.bind(fedfw.L1Ball(3.0), [(10, 20), (10,)])


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_that_are_no_message_are_refused_or_finite(text: str, dtype: torch.dtype) -> None:
    compressor, shape, pieces, rng = made(text), (210,), (200, 10), random.Random(0)
    x = torch.randn(1, 210, generator=torch.Generator().manual_seed(0), dtype=dtype)
    genuine = compressor.encode(x, shape, pieces, draw=4)[0].to_bytes()
    readers = compressor.readers(shape, pieces, draw=4)

    def read(data: bytes) -> Atom:
        reader = Reader(data)
        atom = read_framed(reader, readers)
        reader.finish()
        return atom

    for data in (b"", genuine[:-1], genuine[: len(genuine) // 2], genuine + b"?", bytes(len(genuine))):
        with pytest.raises(AtomError):
            read(data)
    for _ in range(300):
        spoilt = bytearray(genuine)
        for _ in range(rng.randrange(1, 10)):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        try:
            atom = read(bytes(spoilt))
        except AtomError:
            continue
        assert atom.dense(torch.float64).shape == shape
        assert not bool(atom.dense(torch.float64).isnan().any())
        assert atom.nbytes <= len(genuine) + 4 * 210


@pytest.mark.parametrize(
    "text", ["topk", "topk:0", "topk:-1", "topk:1.5", "randk:", "bits:3", "sign:1", "rank:0", "atoms:x", "TOPK:3", "8"]
)
def test_strings_that_name_no_compressor_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"compress='{text}', expected none, topk:K .*, randk:K .* or atoms:R"):
        fedfw.FedPGD(fedfw.L1Ball(1.0), compress=text)
    if text != "topk":
        with pytest.raises(ValueError, match=rf"compress_down='{text}', expected none, or topk:K"):
            fedfw.FedPGD(fedfw.L1Ball(1.0), compress_down=text)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", ["topk:4", "randk:5", "bits:8", "bits:4", "bits:2", "sign", "rank:2", "atoms:3"])
def test_subnormal_numbers_come_back_and_never_grow(text: str, dtype: torch.dtype) -> None:
    """Scales lose digits there, but what is left of a vector is never more than the vector."""
    lowest, usual = (-149, 0) if dtype == torch.float32 else (-1074, 600)
    for ball in (fedfw.L1Ball(2.0), fedfw.NuclearBall(2.0)):
        bound = ball.bind({"weight": (8, 5)})
        compressor = make_compressor(text)
        assert compressor is not None
        compressor = compressor.bind(bound, [(8, 5)])
        for above in (0, 1, 5, 20):
            whole = torch.randint(-9, 10, (2, 40), generator=torch.Generator().manual_seed(above)).double()
            x = (whole * 2.0 ** (lowest + above)).to(dtype)
            kept = exchanged(compressor, x, bound.pieces((40,)))
            assert bool(kept.isfinite().all())
            v, off = (t.double() * 2.0**usual for t in (x, kept - x.double()))
            assert bool((off.norm(dim=1) <= v.norm(dim=1) * (1 + SLACK)).all())
