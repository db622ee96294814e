"""The compiled parts of a round: what torch gives, in both precisions, for any sizes, alone and stacked."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

import fedfw
from fedfw.errors import NonFiniteError
from fedfw.linalg import compiled
from fedfw.linalg.entries import add_entries, largest_entries, scaled_signs, stepped_to_entries
from fedfw.linalg.pull import pulled
from fedfw.linalg.sums import add_rows

DTYPES = (torch.float32, torch.float64)
needs_compiled = pytest.mark.skipif(compiled.compiled is None, reason="there was no compiler when fedfw was installed")


def drawn(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def entries_of(n: int, k: int, p: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices, some of them twice in a row, and values."""
    indices = torch.randint(0, p, (n, k), generator=torch.Generator().manual_seed(seed))
    return indices, drawn((n, k), seed + 1)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compiled", None)


def test_where_there_is_a_compiler_the_code_was_compiled() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no compiler")
    assert compiled.compiled is not None


@given(st.integers(1, 5), st.integers(1, 70), st.sampled_from(DTYPES), st.booleans(), st.integers(0, 10**6))
def test_the_first_of_the_largest_entries(n: int, p: int, dtype: torch.dtype, ties: bool, seed: int) -> None:
    g = drawn((n, p), seed, dtype)
    g = g.round() if ties else g  # zeros of both signs, and many entries of the same magnitude
    index, signs, checks = largest_entries(g)
    assert checks.isfinite().all()
    assert (index.shape, signs.shape, signs.dtype, checks.shape) == ((n, 1), (n, 1), torch.int8, (n,))
    for row, at, sign in zip(g.tolist(), index.flatten().tolist(), signs.flatten().tolist(), strict=True):
        magnitudes = list(map(abs, row))
        assert at == magnitudes.index(max(magnitudes))
        assert sign == (-1 if row[at] > 0 else 1)


@given(st.integers(1, 40), st.data(), st.sampled_from(DTYPES), st.sampled_from([torch.nan, torch.inf, -torch.inf]))
def test_what_is_not_finite_is_noticed_wherever_it_is(
    p: int, data: st.DataObject, dtype: torch.dtype, bad: float
) -> None:
    g = drawn((3, p), p, dtype)
    g[1, data.draw(st.integers(0, p - 1))] = bad
    assert largest_entries(g)[2].isfinite().tolist() == [True, False, True]
    with pytest.raises(NonFiniteError):
        fedfw.L1Ball(1.0).lmo(g, batch=True)


@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 50), st.floats(0, 1), st.integers(0, 10**6))
def test_steps_and_sums_have_the_bits_of_torch(n: int, k: int, p: int, eta: float, seed: int) -> None:
    x, (indices, values) = drawn((n, p), seed), entries_of(n, k, p, seed)
    expected = (x * (1 - eta)).scatter_add_(1, indices, values * eta)
    assert torch.equal(stepped_to_entries(x, indices, values, eta), expected)
    total = x[0].clone()
    add_entries(total, indices, values)
    assert torch.equal(total, x[0].clone().index_add_(0, indices.flatten(), values.flatten()))


@given(st.integers(1, 4), st.integers(1, 50), st.sampled_from(DTYPES), st.floats(0, 1e3), st.integers(0, 10**6))
def test_the_pull_is_that_of_exact_numbers_alone_and_stacked(
    n: int, p: int, dtype: torch.dtype, lam: float, seed: int
) -> None:
    a, x, xbar = drawn((n, p), seed, dtype), drawn((n, p), seed + 1), drawn((p,), seed + 2)
    g = pulled(a, x, xbar, lam)
    assert g.dtype is dtype
    away = lam * (x - xbar)
    error = (g.double() - (a.double() + away)).abs()
    assert (error <= 2 * torch.finfo(dtype).eps * (a.double().abs() + away.abs())).all()
    for i in range(n):
        assert torch.equal(pulled(a[i : i + 1], x[i : i + 1], xbar, lam)[0], g[i])
    assert torch.equal(pulled(a, x, xbar, torch.tensor(lam, dtype=torch.float64)), g)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_signs_times_a_number(dtype: torch.dtype) -> None:
    signs = torch.tensor([[1, -1, 0]], dtype=torch.int8)
    assert torch.equal(scaled_signs(signs, 0.1, dtype), signs.to(dtype) * torch.tensor(0.1, dtype=dtype))


@needs_compiled
@pytest.mark.parametrize("index", [-1, 5, 2**62])
def test_entries_that_there_are_not_are_refused(index: int) -> None:
    at, values = torch.tensor([[index]]), torch.ones(1, 1, dtype=torch.float64)
    x = torch.zeros(1, 5, dtype=torch.float64)
    with pytest.raises(IndexError, match=f"entry {index} of 5"):
        stepped_to_entries(x, at, values, 0.5)
    with pytest.raises(IndexError, match=f"entry {index} of 5"):
        add_entries(x[0], at, values)
    with pytest.raises(ValueError, match="entries of 1 vectors, expected 2"):
        stepped_to_entries(x.expand(2, 5).clone(), at, values, 0.5)


@needs_compiled
@pytest.mark.parametrize("name", ["select", "pull", "scale", "step", "add", "add_rows"])
def test_other_numbers_of_arguments_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match="0 arguments, expected"):
        getattr(compiled.compiled, name)()
    with pytest.raises(TypeError):
        getattr(compiled.compiled, name)(*8 * ["no number"])


def test_rows_that_do_not_lie_together_are_not_handed_over() -> None:
    wide, values = drawn((3, 20), 0), torch.ones(3, 1, dtype=torch.float64)
    x, at = wide[:, ::2], torch.tensor([[9], [0], [4]])
    assert largest_entries(x)[0].flatten().tolist() == x.abs().argmax(1).tolist()
    assert torch.equal(stepped_to_entries(x, at, values, 0.5), stepped_to_entries(x.contiguous(), at, values, 0.5))
    assert torch.allclose(pulled(x, x, x[0], 0.5), pulled(x.contiguous(), x.contiguous(), x[0].contiguous(), 0.5))
    step = x.contiguous().requires_grad_()
    stepped_to_entries(step, at, values, 0.25).sum().backward()  # what torch differentiates stays with torch
    assert step.grad is not None
    assert (step.grad == 0.75).all()


def test_a_parameter_without_entries_has_no_largest_one() -> None:
    with pytest.raises(ValueError, match="empty"):
        largest_entries(torch.empty(2, 0))


def test_what_torch_looks_at_stays_with_torch() -> None:
    atom, x = fedfw.L1Ball(2.0).lmo(torch.tensor([1.0, -3.0, 2.0])), torch.ones(3, dtype=torch.float64)

    def step(x: Tensor) -> Tensor:
        return atom.stepped(x, 0.25)

    assert torch.func.vmap(step)(x.expand(2, 3).clone()).tolist() == [[0.75, 1.25, 0.75]] * 2
    assert torch.func.jvp(step, (x,), (x,))[1].tolist() == [0.75] * 3
    assert (
        torch.func.grad(lambda w: (w * step(torch.ones(3, dtype=torch.float64))).sum())(x).tolist() == step(x).tolist()
    )
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(step(forward_ad.make_dual(x, x))).tangent.tolist() == [0.75] * 3
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(step(torch.ones(3, dtype=torch.float64))) is FakeTensor
    assert step(torch._neg_view(x)).tolist() == [-0.75, -0.25, -0.75]
    lam = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    pulled(x[None], 3 * x[None], x, lam).sum().backward()
    assert lam.grad == 6


def test_what_is_changed_counts_as_changed() -> None:
    atoms = fedfw.L1Ball(2.0).lmo(torch.tensor([1.0, -3.0, 2.0])), fedfw.L2Ball(2.0).lmo(torch.tensor([1.0, -3.0, 2.0]))
    for atom in atoms:
        w, x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True), torch.ones(3, dtype=torch.float64)
        y = (w * x).sum()
        atom.add_sum_to(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_many_rows_stay_exact(dtype: torch.dtype) -> None:
    x = torch.zeros(1, dtype=dtype)
    add_rows(x, torch.full((30_000, 1), 0.1, dtype=dtype), 1.0)
    assert float(x) == pytest.approx(3000, rel=4 * torch.finfo(dtype).eps + 1e-11)


@pytest.mark.parametrize("name", ["fedfw", "fedfw+", "fedfw-sto"])
def test_a_run_without_a_compiler(name: str, request: pytest.FixtureRequest) -> None:
    samples = [(drawn((9, 6), i, torch.float32), drawn((9, 1), 10 + i, torch.float32)) for i in range(3)]
    problem = fedfw.Problem(nn.Linear(6, 1), nnf.mse_loss, samples)
    algorithm = fedfw.ALGORITHMS[name](fedfw.L1Ball(1.0))
    run = fedfw.simulate(problem, algorithm, rounds=20)
    request.getfixturevalue("without")
    other = fedfw.simulate(problem, algorithm, rounds=20)
    assert torch.allclose(run.x, other.x, rtol=1e-5, atol=1e-7)
    assert run.history["bytes_up"] == other.history["bytes_up"]


@given(st.integers(0, 4), st.integers(1, 600), st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.integers(0, 10**6))
def test_sums_of_rows(n: int, p: int, dtype: torch.dtype, of: torch.dtype, seed: int) -> None:
    x, rows = drawn((p,), seed, dtype), drawn((n, p), seed + 1, of)
    expected = x.double() - 3 * rows.double().sum(0)
    add_rows(x, rows, -3.0)
    assert torch.allclose(x.double(), expected, rtol=0, atol=30 * torch.finfo(dtype).eps * 4)
