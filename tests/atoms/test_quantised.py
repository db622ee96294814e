"""Numbers in few bits: they come back to the bit, their error is within the stated bound, hostile bytes are refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfw.atoms import Atom, Moved, Quantised
from fedfw.atoms.base import read_framed, stack_atoms
from fedfw.atoms.bits import Reader, pack_numbers, packed_nbytes, read_numbers
from fedfw.atoms.quantised import BLOCK
from fedfw.errors import AtomError

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
    atom = read_framed(reader, {Quantised: lambda r, q: Quantised.read(r, q, shape=(p,), bits=bits, sizes=sizes)})
    reader.finish()
    assert isinstance(atom, Quantised)
    return atom


def blocks_of(x: torch.Tensor, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [block for piece in x.split(list(sizes)) for block in piece.split(BLOCK)]


@given(vectors(), st.sampled_from([2, 4, 8]))
@settings(max_examples=150, deadline=None)
def test_a_vector_comes_back_within_the_stated_error(case: tuple[torch.Tensor, tuple[int, ...]], bits: int) -> None:
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
        tiny = torch.finfo(torch.bfloat16).tiny  # below it steps of scales are coarser than steps of levels
        for one, near in zip(blocks_of(row, sizes), blocks_of(back.dense(x.dtype), sizes), strict=True):
            allowed = float(one.abs().max()) / (2 * LARGEST[bits])
            assert float((one.double() - near.double()).abs().max()) <= allowed * (1 + 1 / 256) + tiny


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_of_four_bits(dtype: torch.dtype) -> None:
    """A frame, 16 bits of scale for 128 numbers, half a byte a number: less than 1 / 7.7 of float32."""
    p = 7850
    atom = Quantised.nearest(torch.ones(1, p, dtype=dtype), shape=(p,), bits=4, sizes=(p,))[0]
    assert len(atom.to_bytes()) == atom.nbytes == 1 + 2 * 62 + 3925
    if dtype is torch.float32:
        assert 4 * p / atom.nbytes > 7.7


def test_pieces_do_not_share_a_scale() -> None:
    """A bias with large numbers does not cost the weights beside it their resolution."""
    x = torch.cat([torch.linspace(-1e-3, 1e-3, 100), torch.full((3,), 1e3)])[None]
    apart, together = (Quantised.nearest(x, shape=(103,), bits=8, sizes=sizes) for sizes in ((100, 3), (103,)))
    assert float((apart.dense() - x).abs().max()) < 1e-5
    assert bool((together.dense()[:, :100] == 0).all())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_hostile_bytes_raise_only_atom_error(bits: int) -> None:
    rng, sizes = random.Random(0), (5, 300)
    genuine = Quantised.nearest(
        torch.randn(1, 305, generator=torch.Generator().manual_seed(0)), shape=(305,), bits=bits, sizes=sizes
    )[0].to_bytes()
    refused = 0
    for trial in range(3000):
        data = bytearray(genuine)
        if trial % 3 == 0:
            data[1:] = rng.randbytes(rng.randrange(len(genuine)) if trial % 2 else len(genuine) - 1)
        else:
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert bool(read(bytes(data), bits, sizes).dense(torch.float64).isfinite().all())
        except AtomError:
            refused += 1
    assert refused > 500


def scale_of(value: float) -> bytes:
    """A scale as it is sent: the upper half of a float32."""
    return np.array([value], "<f4").tobytes()[2:]


def test_scales_and_levels_out_of_range_are_refused() -> None:
    scale = scale_of(1.0)
    frame = Quantised.nearest(torch.ones(1, 2), shape=(2,), bits=4, sizes=(2,))[0].to_bytes()[:1]
    assert read(frame + scale + b"\x0e", 4, (2,)).dense().tolist() == [-1.0, 1.0]
    for bad, reason in (
        (scale_of(-1.0) + b"\x77", "a scale of -1.0, expected at least 0"),
        (scale_of(float("inf")) + b"\x77", "not finite"),
        (scale + b"\x0f", "a level of 8, expected at most 7"),
    ):
        with pytest.raises(AtomError, match=reason):
            read(frame + bad, 4, (2,))
    with pytest.raises(AtomError, match="padding"):
        read(frame + scale + b"\x71", 4, (1,))


@given(st.lists(st.integers(0, 255), max_size=50), st.sampled_from([1, 2, 4, 8]))
def test_small_numbers_come_back(numbers: list[int], bits: int) -> None:
    array = np.array(numbers, np.uint8) & np.uint8(2**bits - 1)
    data = pack_numbers(array, bits)
    assert len(data) == packed_nbytes(len(numbers), bits)
    assert np.array_equal(read_numbers(Reader(data), len(numbers), bits), array)


def test_a_moved_point_travels_as_its_move() -> None:
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    move = Quantised.nearest(x, shape=(10,), bits=4, sizes=(10,))
    points: Atom = Moved(shape=(10,), batched=True, values=1 + move.dense(), move=move)
    assert [point.to_bytes() for point in points] == [one.to_bytes() for one in move]
    assert points.nbytes == move.nbytes
    again = stack_atoms(list(points))
    assert torch.equal(again.dense(), points.dense())
    assert again.nbytes == points.nbytes
    assert torch.allclose(points.dot(torch.ones(3, 10)), points.dense().double().sum(1))
    assert torch.equal(points.step(torch.zeros(3, 10), 0.5), points.dense() / 2)
