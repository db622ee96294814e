"""Every compressor is the contraction that it says it is, comes back to the bit, and refuses what
is no message.
"""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedfw
from fedfw.atoms import Atom, mix
from fedfw.atoms.base import read_framed, stack_atoms
from fedfw.atoms.bits import Reader
from fedfw.compression import Bits, Compressor, Pursuit, Rank, TopK, make_compressor
from fedfw.errors import AtomError
from fedfw.sets.base import ConstraintSet, Shape

DTYPES = [torch.float32, torch.float64]
ROUNDED = 1 - 2.0**-16
"""What rounding to bfloat16 leaves of a contraction."""


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Tensor, tuple[int, ...]]:
    """Two rows of numbers of different sizes, zeros among them, and the pieces that they consist
    of.
    """
    sizes = tuple(draw(st.lists(st.integers(1, 300), min_size=1, max_size=3)))
    dtype, seed = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, sum(sizes), generator=generator, dtype=torch.float64)
    x = x * 10.0 ** (
        draw(st.sampled_from([0.0, 4.0]))
        * torch.rand(x.shape, generator=generator, dtype=torch.float64)
    )
    x[torch.rand(x.shape, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))] = 0
    return (x * 10.0 ** draw(st.sampled_from([-30, -3, 0, 3, 30]))).to(dtype), sizes


def exchanged(compressor: Compressor, x: Tensor, pieces: Sequence[int]) -> Tensor:
    """What the receiver decodes, (n, p): to the bit what the sender holds, from the bytes that are
    counted.
    """
    shape = (x.shape[1],)
    sent = compressor.encode(x, shape, pieces)
    readers = compressor.readers(shape, pieces)
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
    # A stack and its rows have the same bits: a client encodes alone what a simulator encodes for
    # all.
    alone = [compressor.encode(row[None], shape, pieces)[0].to_bytes() for row in x]
    assert alone == messages
    assert torch.equal(together.dense(x.dtype), sent.dense(x.dtype))
    return sent.dense(torch.float64)


def left_over(compressor: Compressor, x: Tensor, pieces: Sequence[int]) -> Tensor:
    """||C(v) - v||^2 / ||v||^2 of the rows, (n,); 0 for zeros."""
    v = x.double()
    off = (exchanged(compressor, x, pieces) - v).square().sum(1)
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
    assert bool(
        (lost <= least * (1 + 1 / 256)).all()
    )  # nothing larger than what was sent stays behind


@given(vectors(), st.sampled_from([2, 4, 8]))
@settings(max_examples=40, deadline=None)
def test_few_bits_are_a_contraction(case: tuple[Tensor, tuple[int, ...]], bits: int) -> None:
    x, pieces = case
    left = left_over(Bits(bits), x, pieces)
    assert bool((left <= 1 - 1 / 128 + SLACK).all())
    assert bits < 8 or bool((left <= 64 / 127**2 + SLACK).all())


SHAPES: list[tuple[Shape, ...]] = [
    ((3, 5),),
    ((12, 7), (12,)),
    ((4, 3, 5), (2,), (40, 6)),
    ((9, 9),),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("r", [1, 2])
def test_matrices_of_low_rank_are_a_contraction(
    r: int, shapes: tuple[Shape, ...], dtype: torch.dtype
) -> None:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    compressor = Rank(r).bind(fedfw.L2Ball(1.0), shapes) if r == 1 else Rank(r, shapes)
    shorter = max(
        min(shape[0], torch.Size(shape[1:]).numel()) for shape in shapes if len(shape) > 1
    )
    for seed, size in ((0, 1e-30), (1, 1.0), (2, 1e10), (3, 0.0)):
        generator = torch.Generator().manual_seed(seed)
        x = (size * torch.randn(3, sum(sizes), generator=generator, dtype=torch.float64)).to(dtype)
        assert bool(
            (left_over(compressor, x, sizes) <= 1 - r / shorter * (1 - 2.0**-6) + SLACK).all()
        )


GROUPS = torch.arange(12) % 4
PURSUED: dict[str, tuple[ConstraintSet, int | None]] = {
    "l1": (fedfw.L1Ball(3.0), 12),
    "group": (fedfw.GroupBall(5.0, GROUPS), 4),
    "nuclear": (fedfw.NuclearBall(2.0).bind({"w": (3, 4)}), 3),
    "[W|b]": (fedfw.NuclearBall(2.0).bind({"w": (3, 3), "b": (3,)}), 3),
    "l2": (fedfw.L2Ball(0.1), 1),
    "simplex": (fedfw.Simplex(2.0), 12),
    "linf": (fedfw.LinfBall(1.0), None),
    "product": (
        fedfw.Product({"w": fedfw.L1Ball(1.0), "b": fedfw.Simplex(1.0)}).bind(
            {"w": (8,), "b": (4,)}
        ),
        8,
    ),
}
"""Sets, and of how many atoms the best one keeps its share of any vector."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("r", [1, 3])
@pytest.mark.parametrize("name", PURSUED)
def test_atoms_of_the_set_are_a_contraction(name: str, r: int, dtype: torch.dtype) -> None:
    constraint, of = PURSUED[name]
    compressor = Pursuit(r).bind(constraint, ())
    for seed, size in ((0, 1e-10), (1, 1.0), (2, 1e10), (3, 0.0), (4, -1.0)):
        x = size * torch.randn(
            3, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        x = -x.abs() if size < 0 else x  # for a simplex, whose atoms are positive
        left = left_over(compressor, x.to(dtype), (12,))
        bound = 1.0 if of is None else (1 - (1 - 2.0**-7) / of) ** r
        assert bool((left <= bound + SLACK).all())


ALL = ["topk:5", "topk:400", "bits:4", "rank:1", "atoms:3"]


def made(text: str) -> Compressor:
    compressor = make_compressor(text)
    return compressor.bind(fedfw.L1Ball(3.0), [(10, 20), (10,)])


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_that_are_no_message_are_refused_or_finite(text: str, dtype: torch.dtype) -> None:
    compressor, shape, pieces, rng = made(text), (210,), (200, 10), random.Random(0)
    x = torch.randn(1, 210, generator=torch.Generator().manual_seed(0), dtype=dtype)
    genuine = compressor.encode(x, shape, pieces)[0].to_bytes()
    readers = compressor.readers(shape, pieces)

    def read(data: bytes) -> Atom:
        reader = Reader(data)
        atom = read_framed(reader, readers)
        reader.finish()
        return atom

    for data in (
        b"",
        genuine[:-1],
        genuine[: len(genuine) // 2],
        genuine + b"?",
        bytes(len(genuine)),
    ):
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
    "text",
    [
        "topk",
        "topk:0",
        "topk:-1",
        "topk:1.5",
        "bits:3",
        "sign",
        "rank:0",
        "atoms:x",
        "TOPK:3",
        "8",
    ],
)
def test_strings_that_name_no_compressor_are_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=rf"compress='{text}', expected none, topk:K .* or atoms:R"
    ):
        fedfw.FedPGD(fedfw.L1Ball(1.0), compress=text)
    if text != "topk":
        with pytest.raises(ValueError, match=rf"compress_down='{text}', expected none, or topk:K"):
            fedfw.FedPGD(fedfw.L1Ball(1.0), compress_down=text)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", ["topk:4", "bits:8", "bits:4", "bits:2", "rank:2", "atoms:3"])
def test_subnormal_numbers_come_back_and_never_grow(text: str, dtype: torch.dtype) -> None:
    """Scales lose digits there, but what is left of a vector is never more than the vector."""
    lowest, usual = (-149, 0) if dtype == torch.float32 else (-1074, 600)
    for ball in (fedfw.L1Ball(2.0), fedfw.NuclearBall(2.0)):
        bound = ball.bind({"weight": (8, 5)})
        compressor = make_compressor(text)
        compressor = compressor.bind(bound, [(8, 5)])
        for above in (0, 1, 5, 20):
            whole = torch.randint(
                -9, 10, (2, 40), generator=torch.Generator().manual_seed(above)
            ).double()
            x = (whole * 2.0 ** (lowest + above)).to(dtype)
            kept = exchanged(compressor, x, bound.pieces((40,)))
            assert bool(kept.isfinite().all())
            v, off = (t.double() * 2.0**usual for t in (x, kept - x.double()))
            assert bool((off.norm(dim=1) <= v.norm(dim=1) * (1 + SLACK)).all())


# --- Compressed nets stay in their sets, come back to the bit, and train as well as what is not
# compressed ---

LAYER = torch.nn.Linear(30, 20)
SETS: dict[str, ConstraintSet] = {
    "l2": fedfw.L2Ball(3.0).bind(LAYER),
    "linf": fedfw.LinfBall(0.3).bind(LAYER),
    "box": fedfw.Box(-0.1, 0.3).bind(LAYER),
    "spectral": fedfw.SpectralBall(0.7).bind(LAYER),
    "simplex": fedfw.Simplex(2.0).bind(LAYER),
    "partial isometry": fedfw.PartialIsometry(15, 0.7).bind(LAYER),
    "product": fedfw.Product({"weight": fedfw.SpectralBall(0.7), "*": fedfw.L2Ball(0.1)}).bind(
        LAYER
    ),
    "half of a product": fedfw.Product({"weight": fedfw.L1Ball(0.7), "*": fedfw.L2Ball(0.1)}).bind(
        LAYER
    ),
}
STRICT = ("l2", "linf", "box", "spectral", "product")
"""Sets in which nothing that was shrunk is outside by so much as a rounding error."""
P = 620


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
def test_what_is_shrunk_lies_in_the_set_near_what_it_was(name: str, dtype: torch.dtype) -> None:
    D = SETS[name]
    inside = torch.stack(
        [D.random_point((P,), torch.Generator().manual_seed(i), dtype) for i in range(5)]
    )
    tol = 0.0 if name in STRICT else 1e-6
    for size in (0.0, 1e-3, 0.1, 1e30 if name in STRICT else 10.0):
        x = inside + size * gaussian(5, P, dtype=dtype)
        near = D.shrink(x, batch=True)
        assert near.dtype is dtype
        assert bool(D.contains(near, tol, batch=True).all())
        if size < 1:  # not much farther than the nearest point
            assert bool(((near - x).norm(dim=1) <= 20 * (size + 1e-6) * P**0.5).all())
    assert torch.allclose(D.shrink(0.5 * inside[0]), D.project(0.5 * inside[0]), atol=1e-5)


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(fedfw.NonFiniteError, match="row 0 of 1"):
        fedfw.L2Ball(1.0).shrink(torch.tensor([1.0, float("nan")]))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
def test_nets_come_back_as_points_of_the_set(
    name: str, dtype: torch.dtype, steps: int, bits: int
) -> None:
    D, compressor, weights = SETS[name], Bits(bits), [1 / steps] * steps
    base = D.random_point((P,), torch.Generator().manual_seed(7), dtype)
    net = mix(
        [
            D.lmo(gaussian(3, P, seed=k, dtype=dtype), batch=True, precision=dtype)
            for k in range(steps)
        ],
        weights,
    )
    sent = compressor.encode_net(net, base, D, (P,))
    readers = compressor.net_readers(base, D, (P,), weights)
    for one in sent:
        data = one.to_bytes()
        assert len(data) == one.nbytes <= net.nbytes
        reader = Reader(data)
        back = read_framed(reader, readers)
        reader.finish()
        assert torch.equal(back.dense(dtype), one.dense(dtype))
        assert D.accepts_net(back, (P,))
        shrunk = name in STRICT and "bits" in one.kind
        assert D.contains(back.dense(dtype), 0.0 if shrunk else 1e-6)
    if bits == 8:
        assert float((sent.dense() - net.dense()).norm()) <= 0.02 * float(
            (net.dense() - base).norm()
        )


@pytest.mark.parametrize("name", ["l2", "linf", "spectral", "product"])
@pytest.mark.parametrize("precision", DTYPES)
def test_random_bytes_decode_to_points_of_the_set_or_not_at_all(
    name: str, precision: torch.dtype
) -> None:
    D, base, rng = SETS[name], torch.zeros(P), random.Random(0)
    net = mix([D.lmo(gaussian(1, P, seed=k), batch=True) for k in range(2)], [0.5, 0.5])
    readers = Bits(8).net_readers(base, D, (P,), [0.5, 0.5])
    genuine = Bits(8).encode_net(net, base.to(precision), D, (P,))[0].to_bytes()
    read = []
    for _ in range(300):
        data = bytearray(genuine)
        for _ in range(rng.randrange(1, 30)):
            data[rng.randrange(1, len(data))] = rng.randrange(256)
        try:
            point = read_framed(Reader(bytes(data)), readers)
        except AtomError:
            continue
        read.append(point.dense(torch.float32))
    assert bool(D.contains(torch.stack(read), 0.0, batch=True).all())
    assert len(read) > 20


# --- training ---
