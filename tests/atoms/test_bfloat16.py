"""Numbers in bfloat16: they come back to the bit, and what is not finite is refused."""

from __future__ import annotations

import pytest
import torch

from fedfw.atoms.bits import Reader
from fedfw.atoms.floats import floats_to_bytes, read_floats, to_bfloat16
from fedfw.errors import AtomError


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_changes_a_number_by_a_256th_at_most_and_nothing_overflows(dtype: torch.dtype) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    for size in (1e-30, 1.0, 1e37):
        off = (to_bfloat16(size * x).to(dtype) - size * x).abs()
        assert bool((off <= (size * x).abs() / 256).all())
    tiny = 1e-41 * x
    assert bool(((to_bfloat16(tiny).to(dtype) - tiny).abs() <= tiny.abs()).all())
    huge = torch.tensor([torch.finfo(dtype).max, -torch.finfo(dtype).max], dtype=dtype)
    assert bool(to_bfloat16(huge).isfinite().all())
