"""Losses with a weight and an offset for each row: the closed form against torch's gradient."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fedfw
from fedfw.problems.glm import FAMILIES, family_of, glm_targets, weighted_softmax
from fedfw.problems.known_losses import floor_of, is_convex
from fedfw.problems.linear import LinearLosses
from fedfw.problems.modules import ModuleLosses

ONE_OUTPUT = [loss for loss in FAMILIES if loss is not weighted_softmax]
LOSSES = pytest.mark.parametrize("loss", ONE_OUTPUT, ids=lambda loss: loss.__name__)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def client(
    m: int, seed: int, loss: Callable[..., Tensor], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(m, 4, generator=draw, dtype=torch.float64)
    y = torch.randn(m, generator=draw, dtype=torch.float64)
    family = family_of(loss)
    assert family is not None
    if family.least == 0:
        y = torch.randint(0, 2 if family.most == 1 else 6, (m,), generator=draw).double()
    weights = torch.rand(m, generator=draw, dtype=torch.float64) * 2
    weights[0] = 0
    offset = torch.randn(m, generator=draw, dtype=torch.float64)
    return inputs.to(dtype), glm_targets(y, weights, offset).to(dtype)


def problem(
    loss: Callable[..., Tensor],
    dtype: torch.dtype,
    nested: bool = False,
    sizes: tuple[int, ...] = (9, 30, 30, 1),
) -> fedfw.Problem:
    model: nn.Module = nn.Linear(4, 1, dtype=dtype)
    if nested:
        model = nn.Sequential(model, nn.Identity())
    clients = [client(m, seed, loss, dtype) for seed, m in enumerate(sizes)]
    return fedfw.Problem(model, loss, clients, clients[0], weights="samples")


@LOSSES
@DTYPES
def test_the_closed_form_is_torchs_gradient(
    loss: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    closed, other = problem(loss, dtype), problem(loss, dtype, nested=True)
    assert isinstance(closed.losses, LinearLosses)
    assert isinstance(other.losses, ModuleLosses)
    assert closed.convex
    assert closed.floor == floor_of(loss) == 0
    assert is_convex(loss)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for x in torch.randn(3, 5, dtype=dtype):
        value, gradient = closed.value_and_gradient(x)
        expected, slope = other.value_and_gradient(x)
        assert value == pytest.approx(expected, rel=tolerance)
        assert value >= 0
        assert torch.allclose(gradient, slope, rtol=tolerance, atol=tolerance)
        assert closed.test(x).loss == pytest.approx(other.test(x).loss, rel=tolerance)


@LOSSES
@DTYPES
def test_clients_have_the_same_bits_alone_and_in_a_stack(
    loss: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    together = problem(loss, dtype).losses
    x = torch.randn(4, 5, dtype=dtype)
    values, gradients = together.value_and_gradient(x, torch.arange(4), None)
    for i in range(4):
        value, gradient = together.value_and_gradient(x[i : i + 1], torch.tensor([i]), None)
        assert torch.equal(value[0], values[i])
        assert torch.equal(gradient[0], gradients[i])


@LOSSES
def test_a_row_counts_by_its_weight_and_offset(loss: Callable[..., Tensor]) -> None:
    _, targets = client(8, 3, loss, torch.float64)
    scores = torch.randn(8, dtype=torch.float64)
    each = [
        float(weight * loss(score[None] + offset, glm_targets(y[None])))
        for score, (y, weight, offset) in zip(scores, targets, strict=True)
    ]
    assert float(loss(scores[:, None], targets)) == pytest.approx(math.fsum(each) / 8, rel=1e-12)
    twice = targets.clone()
    twice[:, 1] *= 2
    assert float(loss(scores, twice)) == pytest.approx(2 * float(loss(scores, targets)))


@LOSSES
def test_smoothness_bounds_the_hessian(loss: Callable[..., Tensor]) -> None:
    inputs, targets = client(20, 5, loss, torch.float64)
    p = fedfw.Problem(nn.Linear(4, 1).double(), loss, [(inputs, targets)])
    bound = p.smoothness()
    if loss.__name__ == "weighted_poisson":
        assert bound is None
        return
    assert bound is not None
    A = torch.cat([inputs, torch.ones(20, 1, dtype=torch.float64)], 1)
    largest = 0.0
    for x in 0.1 * torch.randn(5, 5, dtype=torch.float64):
        hessian = torch.autograd.functional.hessian(lambda x: loss(A @ x, targets), x)
        largest = max(largest, float(torch.linalg.eigvalsh(hessian)[-1]))
    assert largest <= bound * 1.002
    assert loss.__name__ != "weighted_squared" or largest >= 0.99 * bound


@LOSSES
def test_targets_without_a_loss_are_refused_by_their_row(loss: Callable[..., Tensor]) -> None:
    inputs, targets = client(5, 1, loss, torch.float64)
    model = nn.Linear(4, 1).double()
    wrong = [
        (1, -1.0, "a weight of -1"),
        (1, math.nan, "a weight of nan"),
        (2, math.inf, "an offset"),
    ]
    if loss.__name__ != "weighted_squared":
        wrong.append((0, -2.0, "y of -2"))
    for column, value, message in wrong:
        broken = targets.clone()
        broken[3, column] = value
        with pytest.raises(ValueError, match=f"client 0: row 3 has {message}"):
            fedfw.Problem(model, loss, [(inputs, broken)])
    with pytest.raises(ValueError, match=r"targets of shape \(5, 2\), expected \[y, weight"):
        fedfw.Problem(model, loss, [(inputs, targets[:, :2])])
    with pytest.raises(ValueError, match="sparse inputs need"):
        fedfw.Problem(model, loss, [(inputs.to_sparse_csr(), targets)])


def test_a_run_comes_to_the_certified_optimum() -> None:
    loss = next(known for known in FAMILIES if known.__name__ == "weighted_poisson")
    clients = [client(m, seed, loss, torch.float64) for seed, m in enumerate((40, 30))]
    model = nn.Linear(4, 1, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    p = fedfw.Problem(model, loss, clients, weights="samples")
    run = fedfw.simulate(p, fedfw.FedFWPlus("l1:0.5"), rounds=100, eval_every=100)
    assert run.lower_bound <= run.history[-1].loss
    assert run.history[-1].loss - run.lower_bound < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weighted_softmax_is_the_cross_entropy_of_repeated_rows(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(12, 4, generator=generator, dtype=dtype)
    labels = torch.arange(12) % 3
    weights = torch.tensor([1.0, 2.0] * 6, dtype=dtype)
    model = nn.Linear(4, 3).to(dtype)
    weighted = fedfw.Problem(
        model, weighted_softmax, [(inputs, glm_targets(labels.to(dtype), weights * 12 / 18))]
    )
    repeats = weights.long()
    repeated = inputs.repeat_interleave(repeats, 0), labels.repeat_interleave(repeats)
    plain = fedfw.Problem(model, nn.functional.cross_entropy, [repeated])
    x = torch.randn(15, generator=generator, dtype=dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-12
    for one, other in zip(weighted.value_and_gradient(x), plain.value_and_gradient(x), strict=True):
        torch.testing.assert_close(
            torch.as_tensor(one), torch.as_tensor(other), rtol=tolerance, atol=tolerance
        )
    assert weighted.smoothness() >= plain.smoothness() * (1 - 1e-2)
