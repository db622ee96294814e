"""Byte counts the project promises, hostile bytes, and atoms a server must not accept."""

import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfw
from fedfw.atoms import Dense, LowRank, Quantised, SparseSigns, SparseValues, bits, index_sets
from fedfw.atoms.base import read_framed
from fedfw.atoms.bits import Reader
from fedfw.atoms.floats import floats_to_bytes, read_floats
from fedfw.atoms.quantised import BLOCK
from fedfw.errors import AtomError
from fedfw.sets.base import ConstraintSet, Shape

MNIST = (7850,)
FRAME = 1


def gradient(shape: Shape, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("constraint", "shape", "precision", "payload"),
    [
        (fedfw.L1Ball(10.0), MNIST, torch.float32, 2),
        (fedfw.KSparse(79, 1.0), MNIST, torch.float32, 90),
        (fedfw.LinfBall(1.0), MNIST, torch.float32, 982),
        (fedfw.Box(-1.0, 1.0), MNIST, torch.float32, 982),
        (fedfw.NuclearBall(10.0), (10, 785), torch.float16, 1590),
        (fedfw.NuclearBall(10.0), (10, 785), torch.float32, 3180),
        (fedfw.L2Ball(10.0), MNIST, torch.float32, 31400),
        (fedfw.Simplex(1.0), (256,), torch.float32, 1),
        (fedfw.Simplex(1.0), (257,), torch.float32, 2),
        (fedfw.L1Ball(1.0), (32768,), torch.float32, 2),
        (fedfw.Birkhoff(), (10, 10), torch.float32, 3),
        (fedfw.Spectrahedron(1.0), (30, 30), torch.float16, 60),
    ],
    ids=lambda value: repr(value) if isinstance(value, ConstraintSet) else None,
)
def test_promised_bytes(
    constraint: ConstraintSet, shape: Shape, precision: torch.dtype, payload: int
) -> None:
    assert len(constraint.lmo(gradient(shape), precision=precision).to_bytes()) == payload + FRAME


DECODED: list[tuple[ConstraintSet, Shape]] = [
    (fedfw.L1Ball(1.0), (100,)),
    (fedfw.L2Ball(1.0), (9,)),
    (fedfw.KSparse(7, 1.0), (300,)),
    (fedfw.KSparse(300, 1.0), (40_000,)),
    (fedfw.KSupport(3, 1.0), (50,)),
    (fedfw.GroupBall(1.0, "columns"), (3, 5)),
    (fedfw.LinfBall(1.0), (21,)),
    (fedfw.CappedSimplex(1.0), (99,)),
    (fedfw.Hypersimplex(4), (19,)),
    (fedfw.NuclearBall(1.0), (3, 4)),
    (fedfw.PartialIsometry(2, 1.0), (6, 7)),
    (fedfw.Spectrahedron(1.0), (4, 4)),
    (fedfw.Birkhoff(), (6, 6)),
    (fedfw.Hull(torch.eye(5)), (5,)),
    (
        fedfw.Product({"weight": fedfw.NuclearBall(1.0), "*": fedfw.KSparse(2)}).bind(
            torch.nn.Linear(4, 3)
        ),
        (15,),
    ),
    (fedfw.NuclearBall(1.0).bind(torch.nn.Linear(4, 3)), (15,)),
]


def test_twenty_thousand_hostile_strings_raise_only_atom_error() -> None:
    rng = random.Random(0)
    genuine = [[D.lmo(gradient(shape, i)).to_bytes() for i in range(5)] for D, shape in DECODED]
    accepted: list[list[tuple[bytes, fedfw.Atom]]] = [[] for _ in DECODED]
    refused = 0
    for trial in range(20_000):
        which = trial % len(DECODED)
        D, shape = DECODED[which]
        if trial % 3 == 0:
            data = rng.randbytes(rng.randrange(40))
        else:
            data = bytearray(rng.choice(genuine[which]))
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if rng.random() < 0.3:
                data = data[: rng.randrange(len(data) + 1)] + rng.randbytes(rng.randrange(4))
        try:
            atom = fedfw.Atom.from_bytes(bytes(data), D, shape)
        except fedfw.AtomError:
            refused += 1
            continue
        if D.accepts(atom, shape):
            accepted[which].append((bytes(data), atom))
    for (D, _), atoms in zip(DECODED, accepted, strict=True):
        for some in (atoms[begin : begin + 200] for begin in range(0, len(atoms), 200)):
            inside = D.contains(
                torch.stack([atom.dense(torch.float64) for _, atom in some]), 1e-5, batch=True
            )
            assert all(inside), (
                D,
                [data for (data, _), well in zip(some, inside, strict=True) if not well],
            )
    assert refused > 6_000
    assert sum(map(len, accepted)) > 200  # a mutated index is another atom of the set: harmless


BALL, NUCLEAR = fedfw.L1Ball(1.0), fedfw.NuclearBall(1.0)
VERTEX = SparseSigns(
    shape=(6,), indices=torch.tensor([[2]]), signs=torch.ones(1, 1, dtype=torch.int8), scale=1.0
)
U, V, SAME = torch.ones(1, 3, 1), torch.ones(1, 4, 1), torch.ones(1, 9, 2) / 3


@pytest.mark.parametrize(
    ("constraint", "atom", "shape", "accepted"),
    [
        (BALL, VERTEX, (6,), True),
        (BALL, dataclasses.replace(VERTEX, scale=2.0), (6,), False),
        (BALL, dataclasses.replace(VERTEX, indices=torch.tensor([[6]])), (6,), False),
        (BALL, VERTEX, (7,), False),
        (BALL, fedfw.L2Ball(1.0).lmo(gradient((6,))), (6,), False),
        (
            BALL,
            dataclasses.replace(
                VERTEX, indices=torch.tensor([[1, 1]]), signs=torch.ones(1, 2, dtype=torch.int8)
            ),
            (6,),
            False,
        ),
        *(
            (fedfw.L2Ball(1.0), Dense(shape=(6,), values=torch.full((1, 6), value)), (6,), False)
            for value in (10.0, math.nan, math.inf)
        ),
        (
            fedfw.KSupport(2, 1.0),
            SparseValues(
                shape=(6,),
                indices=torch.arange(6)[None],
                values=torch.full((1, 6), 6**-0.5),
                scale=1.0,
            ),
            (6,),
            False,
        ),
        (NUCLEAR, LowRank(shape=(3, 4), u=U, v=V, scale=1.0), (3, 4), False),
        (NUCLEAR, LowRank(shape=(3, 4), u=U / 3**0.5, v=V / 2, scale=1.0), (3, 4), True),
        (
            fedfw.PartialIsometry(2, 1.0),
            LowRank(shape=(9, 9), u=SAME, v=SAME, scale=1.0),
            (9, 9),
            False,
        ),
    ],
)
def test_accepts_refuses_what_lies_outside(
    constraint: ConstraintSet, atom: fedfw.Atom, shape: Shape, accepted: bool
) -> None:
    assert constraint.accepts(atom, shape) is accepted


@pytest.mark.parametrize(
    ("constraint", "u", "v"),
    [
        (fedfw.NuclearBall(10.0), [3e38, 0.0], [3e-39, 0.0]),
        (fedfw.NuclearBall(1.0), [1e100, 0.0], [1e-100, 0.0]),
        (fedfw.Spectrahedron(1.0), [1e-40, 1e-40], None),
        (fedfw.Spectrahedron(1.0), [1e100, 1e100], None),
        (fedfw.Spectrahedron(1.0), [1e-155, 0.0], None),
        (fedfw.Spectrahedron(1.0), [0.0, 0.0], None),
    ],
)
def test_factors_that_would_overflow_are_not_accepted(
    constraint: ConstraintSet, u: list[float], v: list[float] | None
) -> None:
    left = torch.tensor(u, dtype=torch.float64).reshape(1, 2, 1)
    right = left if v is None else torch.tensor(v, dtype=torch.float64).reshape(1, 2, 1)
    scale = constraint.r  # type: ignore[attr-defined]
    atom = LowRank(
        shape=(2, 2), precision=torch.float64, u=left, v=right, scale=scale, symmetric=v is None
    )
    assert not constraint.accepts(atom, (2, 2))


# --- Integer, index-set and permutation codes: exact both ways, near the information they carry ---


@st.composite
def drawn_index_sets(draw: st.DrawFn, largest: int = 3000) -> tuple[int, np.ndarray]:
    p = draw(st.integers(1, largest))
    k = draw(st.integers(1, p))
    seed = draw(st.integers(0, 2**32 - 1))
    return p, np.sort(np.random.default_rng(seed).choice(p, k, replace=False))


@given(st.integers(1, 10**30), st.data())
def test_integers_come_back(count: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, count - 1))
    encoded = bits.write_integer(number, count)
    assert 256 ** len(encoded) >= count  # enough
    assert len(encoded) == 0 or 256 ** (len(encoded) - 1) < count  # and no byte more
    assert bits.read_integer(bits.Reader(encoded), count) == number


@given(drawn_index_sets(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_index_sets_come_back(case: tuple[int, np.ndarray], signed: bool) -> None:
    p, indices = case
    extra = np.random.default_rng(p).integers(0, 2, len(indices) if signed else 0).astype(np.uint8)
    encoded = index_sets.write_index_set(indices, p, extra)
    reader = bits.Reader(encoded)
    back, tail = index_sets.read_index_set(reader, p, len(indices), len(extra))
    reader.finish()
    assert np.array_equal(back, indices)
    assert np.array_equal(tail, extra)
    assert index_sets.index_set_nbytes(indices[None], p, len(extra)) == len(encoded)


@pytest.mark.parametrize(
    ("p", "k"), [(7850, 79), (1000, 500), (100_000, 1000), (10**6, 10**4), (10**5, 99_000)]
)
def test_uniform_index_sets_are_near_the_information(p: int, k: int) -> None:
    information = (
        (math.lgamma(p + 1) - math.lgamma(k + 1) - math.lgamma(p - k + 1)) / math.log(2) / 8
    )
    indices = np.sort(np.random.default_rng(0).choice(p, k, replace=False))
    assert information <= index_sets.index_set_nbytes(indices[None], p, 0) <= 1.03 * information + 1


def test_small_index_sets_meet_the_information_exactly() -> None:
    for p, k in [(7850, 79), (10, 3), (10, 10), (60, 30), (10**6, 40)]:
        least = math.ceil(math.log2(math.comb(p, k)) / 8)
        assert index_sets.index_set_nbytes(np.arange(k)[None], p, 0) == least


@given(st.permutations(list(range(13))))
def test_permutations_come_back(order: list[int]) -> None:
    encoded = index_sets.write_permutation(np.array(order))
    assert len(encoded) == math.ceil(math.log2(math.factorial(13)) / 8)
    assert index_sets.read_permutation(bits.Reader(encoded), 13).tolist() == order


def test_numbers_out_of_range_and_dirty_padding_are_refused() -> None:
    with pytest.raises(AtomError, match="not below 200"):
        bits.read_integer(bits.Reader(b"\xff"), 200)
    with pytest.raises(AtomError, match="padding"):
        bits.read_bits(bits.Reader(b"\xff"), 3)


# --- Numbers in few bits ---

LARGEST = {8: 127, 4: 7, 2: 1}
DTYPES = [torch.float32, torch.float64]


@st.composite
def vectors(draw: st.DrawFn) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Two rows of numbers of very different sizes, zeros among them, in pieces."""
    sizes = tuple(draw(st.lists(st.integers(1, 1000), min_size=1, max_size=3)))
    dtype, seed = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**32 - 1))
    exponent = draw(st.sampled_from([-44, -30, -3, 0, 3, 30]))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, sum(sizes), generator=generator, dtype=torch.float64)
    x = x * 10.0 ** (4 * torch.rand(x.shape, generator=generator, dtype=torch.float64))
    x[torch.rand(x.shape, generator=generator) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = 0
    return (x * 10.0**exponent).to(dtype), sizes


def read(data: bytes, bits: int, sizes: tuple[int, ...]) -> Quantised:
    p, reader = sum(sizes), Reader(data)
    atom = read_framed(
        reader, {Quantised: lambda r, q: Quantised.read(r, q, shape=(p,), bits=bits, sizes=sizes)}
    )
    reader.finish()
    assert isinstance(atom, Quantised)
    return atom


def blocks_of(x: torch.Tensor, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [block for piece in x.split(list(sizes)) for block in piece.split(BLOCK)]


@given(vectors(), st.sampled_from([2, 4, 8]))
@settings(max_examples=150, deadline=None)
def test_a_vector_comes_back_within_the_stated_error(
    case: tuple[torch.Tensor, tuple[int, ...]], bits: int
) -> None:
    x, sizes = case
    atoms = Quantised.nearest(x, shape=(x.shape[1],), bits=bits, sizes=sizes)
    assert atoms.nbytes == sum(len(atom.to_bytes()) for atom in atoms)
    for atom, row in zip(atoms, x, strict=True):
        data = atom.to_bytes()
        back = read(data, bits, sizes)
        assert back.precision is x.dtype
        assert torch.equal(back.dense(x.dtype), atom.dense(x.dtype))
        assert back.to_bytes() == data
        assert bool((back.dense(x.dtype)[row == 0] == 0).all())
        with pytest.raises(AtomError):
            read(data[:-1], bits, sizes)
        with pytest.raises(AtomError):
            read(data + b"\0", bits, sizes)
        tiny = torch.finfo(
            torch.bfloat16
        ).tiny  # below it steps of scales are coarser than steps of levels
        for one, near in zip(
            blocks_of(row, sizes), blocks_of(back.dense(x.dtype), sizes), strict=True
        ):
            allowed = float(one.abs().max()) / (2 * LARGEST[bits])
            assert (
                float((one.double() - near.double()).abs().max()) <= allowed * (1 + 1 / 256) + tiny
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_of_four_bits(dtype: torch.dtype) -> None:
    """A frame, 16 bits of scale for 128 numbers, half a byte a number: less than 1 / 7.7 of
    float32.
    """
    p = 7850
    atom = Quantised.nearest(torch.ones(1, p, dtype=dtype), shape=(p,), bits=4, sizes=(p,))[0]
    assert len(atom.to_bytes()) == atom.nbytes == 1 + 2 * 62 + 3925
    if dtype is torch.float32:
        assert 4 * p / atom.nbytes > 7.7
    data = bytearray(atom.to_bytes())
    data[1 + 2 * 62] = 0xFF  # two levels of 15, where 14 is the largest
    with pytest.raises(AtomError, match="a level of 8"):
        read(bytes(data), 4, (p,))


# --- Numbers in bfloat16: they come back to the bit, and what is not finite is refused ---


def test_every_finite_number_of_bfloat16_comes_back() -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    finite = every[every.isfinite()]
    data = floats_to_bytes(finite)
    assert len(data) == 2 * len(finite)
    back = read_floats(Reader(data), (len(finite),), torch.bfloat16)
    assert torch.equal(back.view(torch.int16), finite.view(torch.int16))
    for number in every[~every.isfinite()]:
        with pytest.raises(AtomError, match="not finite"):
            read_floats(Reader(floats_to_bytes(number)), (1,), torch.bfloat16)


def test_bytes_are_little_endian() -> None:
    assert floats_to_bytes(torch.tensor([1.0], dtype=torch.bfloat16)).hex() == "803f"
