"""The compiled gradient of softmax regression: that of automatic differentiation, for any sizes,
alone and stacked.
"""

import shutil
import subprocess
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedfw.cpu import softmax
from fedfw.cpu.softmax import is_compiled, softmax_gradient
from fedfw.linalg import lanczos

needs_compiled = pytest.mark.skipif(
    not is_compiled(), reason="there was no compiler when fedfw was installed"
)


def test_where_there_is_a_compiler_the_code_was_compiled() -> None:
    gcc = shutil.which("gcc")
    if (
        gcc is None
        or int(subprocess.run([gcc, "-dumpversion"], capture_output=True).stdout.partition(b".")[0])
        < 12
    ):
        pytest.skip("there is no GCC 12 or newer")
    assert is_compiled()
    assert lanczos._compiled is not None


def stack(n: int, m: int, f: int, c: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Samples, classes and sizes of n clients with at most m samples."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, m, f, generator=generator)
    sizes = torch.randint(1, m + 1, (n,), generator=generator)
    return inputs, torch.randint(0, c, (n, m), generator=generator), sizes


def point(n: int, p: int, seed: int, scale: float, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(n, p, generator=generator)).to(dtype)


def found(
    data: tuple[Tensor, Tensor, Tensor], rows: Tensor, x: Tensor, c: int, **options: Any
) -> tuple[Tensor, Tensor]:
    values, gradients = torch.empty(len(rows)), torch.empty(x.shape)
    picks, factors = options.get("picks"), options.get("factors", 1.0)
    bias = x.shape[1] > c * data[0].shape[2]
    softmax_gradient(*data, rows, picks, x, c, bias, factors, values, gradients)
    return values, gradients


def by_autograd(x: Tensor, inputs: Tensor, targets: Tensor, c: int) -> tuple[Tensor, Tensor]:
    """Of one client, in float64, at the point as float32 has it."""
    x, f = x.float().double().requires_grad_(), inputs.shape[1]
    bias = x[c * f :] if len(x) > c * f else None
    value = nnf.cross_entropy(nnf.linear(inputs.double(), x[: c * f].view(c, f), bias), targets)
    return value.detach(), torch.autograd.grad(value, x)[0]


@needs_compiled
@given(
    n=st.integers(1, 4),
    m=st.integers(1, 140),
    f=st.integers(1, 40),
    c=st.integers(1, 13),
    bias=st.booleans(),
    picked=st.booleans(),
    doubles=st.booleans(),
    unequal=st.booleans(),
    scale=st.sampled_from([0.0, 0.3, 30.0]),
    seed=st.integers(0, 100),
)
def test_the_gradient_of_some_clients_is_that_of_automatic_differentiation(
    n: int,
    m: int,
    f: int,
    c: int,
    bias: bool,
    picked: bool,
    doubles: bool,
    unequal: bool,
    scale: float,
    seed: int,
) -> None:
    inputs, targets, sizes = data = stack(n, m, f, c, seed)
    rows = torch.arange(n).flip(0)[: n // 2 + 1].contiguous()
    x = point(len(rows), c * (f + bias), seed, scale, torch.float64 if doubles else torch.float32)
    picks = torch.stack([torch.arange(9) * 7 % sizes[row] for row in rows]) if picked else None
    factors = torch.linspace(0.5, 2.0, len(rows), dtype=torch.float64) if unequal else 0.3
    values, gradients = found(data, rows, x, c, picks=picks, factors=factors)
    for i, row in enumerate(rows.tolist()):
        own = slice(0, int(sizes[row])) if picks is None else picks[i]
        value, gradient = by_autograd(x[i], inputs[row][own], targets[row][own], c)
        factor = float(factors[i]) if isinstance(factors, Tensor) else factors
        largest = 1 + float(value) + float(inputs[row].abs().max())
        assert abs(float(values[i]) - factor * float(value)) <= 2e-6 * largest * (1 + scale)
        assert float((gradients[i] - factor * gradient).abs().max()) <= 2e-6 * largest * (1 + scale)
        alone = found(
            data,
            rows[i : i + 1],
            x[i : i + 1],
            c,
            picks=None if picks is None else picks[i : i + 1],
        )
        times = found(data, rows, x, c, picks=picks)
        assert torch.equal(alone[0][0], times[0][i])  # the same bits alone and among others
        assert torch.equal(alone[1][0], times[1][i])


@needs_compiled
@pytest.mark.parametrize("m", [2048, 2049, 5000])
def test_clients_with_many_samples_have_the_same_bits_on_any_number_of_threads(
    m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, targets, _ = stack(3, m, 9, 3, 0)
    data = inputs, targets, torch.tensor([m, m - 1, 70])
    x, rows = point(3, 30, 0, 0.3), torch.arange(3)
    values, gradients = found(data, rows, x, 3)
    for i in range(3):
        wanted = by_autograd(x[i], inputs[i, : data[2][i]], targets[i, : data[2][i]], 3)
        assert float(values[i]) == pytest.approx(float(wanted[0]), rel=1e-6)
        assert float((gradients[i] - wanted[1]).abs().max()) <= 1e-6
    monkeypatch.setattr(softmax, "_WORTH_A_THREAD", 1)
    before = torch.get_num_threads()
    try:
        for threads in (2, 4):
            torch.set_num_threads(threads)
            on_threads = found(data, rows, x, 3)
            assert torch.equal(on_threads[0], values)
            assert torch.equal(on_threads[1], gradients)
    finally:
        torch.set_num_threads(before)


@needs_compiled
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("size", [3, 8, 70])
def test_a_number_that_is_not_one_is_its_clients_alone(bad: float, size: int) -> None:
    inputs, targets, _ = stack(3, size, 9, 4, 0)
    inputs[1, size - 1, 2] = bad
    data = inputs, targets, torch.full((3,), size)
    values, gradients = found(data, torch.arange(3), point(3, 40, 0, 0.3), 4)
    assert values.isfinite().tolist() == [True, False, True]
    assert gradients.isfinite().all(1).tolist() == [True, False, True]


@needs_compiled
def test_targets_and_picks_that_there_are_not_are_refused() -> None:
    inputs, targets, sizes = stack(3, 5, 9, 4, 0)
    x, rows = point(3, 40, 0, 0.3), torch.arange(3)
    for wrong in (-1, 5):
        with pytest.raises(ValueError, match="row 0"):
            found((inputs, targets, sizes), rows, x, 4, picks=torch.full((3, 2), wrong))
    targets[2, 0] = 4
    with pytest.raises(ValueError, match="row 2"):
        found((inputs, targets, sizes), rows, x, 4)
