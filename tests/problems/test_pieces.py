"""A linear layer's samples are multiplied a piece at a time: the results are those of all at once.

This is what torch does where there is no compiled code (`tests/cpu/test_softmax.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.problems import linear
from fedfw.problems.linear import LinearLosses
from fedfw.problems.stacks import stack_clients

FEATURES, OUTPUTS = 12, 3
LOSSES: dict[str, Any] = {
    "cross-entropy": nnf.cross_entropy,
    "logistic": nnf.binary_cross_entropy_with_logits,
    "squared": nnf.mse_loss,
}
DTYPES = [torch.float32, torch.float64]
SIZES = {"equal": [21] * 5, "padded": [21, 20, 18, 21, 17], "stacks": [61, 7, 61, 300, 1]}


@pytest.fixture(autouse=True)
def _by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "is_compiled_for", lambda *samples: False)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def clients_of(sizes: list[int], loss: str, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(sum(sizes))
    clients = []
    for size in sizes:
        inputs = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64).to(dtype)
        classes = torch.randint(0, OUTPUTS, (size,), generator=generator)
        clients.append((inputs, classes if loss == "cross-entropy" else nnf.one_hot(classes, OUTPUTS).to(dtype)))
    return clients


def losses_of(clients: list[tuple[Tensor, Tensor]], loss: str, bias: bool) -> LinearLosses:
    model = nn.Linear(FEATURES, OUTPUTS, bias=bias, dtype=clients[0][0].dtype)
    losses = fedfw.Problem(model, LOSSES[loss], clients).losses
    assert isinstance(losses, LinearLosses)
    return losses


def points(count: int, bias: bool, dtype: torch.dtype) -> Tensor:
    size = OUTPUTS * (FEATURES + bias)
    return torch.randn(count, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def by_autograd(loss: str, bias: bool, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """In float64."""
    x = x.double().requires_grad_()
    split = OUTPUTS * FEATURES
    scores = nnf.linear(inputs.double(), x[:split].view(OUTPUTS, FEATURES), x[split:] if bias else None)
    value = LOSSES[loss](scores, targets.double() if targets.is_floating_point() else targets)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


def picks_of(sizes: str, who: tuple[int, ...]) -> Tensor:
    """23 samples of each of these clients."""
    return torch.stack([torch.arange(23) % SIZES[sizes][i] for i in who])


@cache  # they are the same for pieces of every length
def references(
    dtype: torch.dtype, loss: str, bias: bool, sizes: str, who: tuple[int, ...], picked: bool
) -> tuple[Tensor, Tensor]:
    """Losses and gradients of these clients by automatic differentiation, of all samples or of those picked."""
    clients, x = clients_of(SIZES[sizes], loss, dtype), points(len(who), bias, dtype)
    found = []
    for row, i in enumerate(who):
        chosen = tuple(t[picks_of(sizes, who)[row]] for t in clients[i]) if picked else clients[i]
        found.append(by_autograd(loss, bias, x[row], *chosen))
    return torch.stack([value for value, _ in found]), torch.stack([gradient for _, gradient in found])


@cache  # what is picked changes nothing of it
def exactly(
    dtype: torch.dtype, loss: str, bias: bool, sizes: str, who: tuple[int, ...], samples: int
) -> tuple[Tensor, Tensor]:
    """What is found in float64, with pieces of so many samples."""
    assert linear._PIECE["cpu"] == samples * FEATURES * dtype.itemsize
    losses = losses_of(clients_of(SIZES[sizes], loss, dtype), loss, bias)
    return losses.exactly(points(len(who), bias, dtype), torch.tensor(who))


def close(found: Tensor, wanted: Tensor, tol: float) -> bool:
    """Every row, up to its largest number."""
    off, largest = (t.reshape(len(t), -1).abs().amax(1) for t in (found.double() - wanted, wanted))
    return bool((off <= tol * largest).all())


@pytest.mark.parametrize("samples", [1, 10, 10**6])
@pytest.mark.parametrize("picked", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_of_any_length_give_the_gradient(
    dtype: torch.dtype,
    loss: str,
    bias: bool,
    sizes: str,
    picked: bool,
    samples: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(linear._PIECE, "cpu", samples * FEATURES * dtype.itemsize)
    monkeypatch.setattr(linear, "_PER_WEIGHT", 0)
    clients = clients_of(SIZES[sizes], loss, dtype)
    losses, tol = losses_of(clients, loss, bias), 1e-6 if dtype == torch.float32 else 1e-14
    for who in ((0, 1, 2, 3, 4), (3, 0, 4)):
        x, rows = points(len(who), bias, dtype), torch.tensor(who)
        picks = picks_of(sizes, who) if picked else None
        values, gradients = losses.value_and_gradient(x, rows, picks)
        if picks is None:
            assert torch.equal(losses.value(x, rows), values)
        for found, wanted in zip((values, gradients), references(dtype, loss, bias, sizes, who, picked), strict=True):
            assert close(found, wanted, tol)
        wanted_exactly = references(dtype, loss, bias, sizes, who, False)
        found_exactly = exactly(dtype, loss, bias, sizes, who, samples)
        for found, wanted in zip(found_exactly, wanted_exactly, strict=True):
            assert close(found, wanted, 1e-14)


@pytest.mark.parametrize("samples", [10, 10**6])
@pytest.mark.parametrize("size", [1, 50, 61, 128])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_client_alone_has_the_bits_that_it_has_among_others(
    dtype: torch.dtype, loss: str, size: int, samples: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(linear._PIECE, "cpu", samples * FEATURES * dtype.itemsize)
    monkeypatch.setattr(linear, "_PER_WEIGHT", 0)
    clients, x = clients_of([size] * 7, loss, dtype), points(7, True, dtype)
    losses, picks = losses_of(clients, loss, True), torch.arange(23).expand(7, -1) % size
    alone = [losses_of([client], loss, True) for client in clients]
    for chosen in (None, picks):
        values, gradients = losses.value_and_gradient(x, torch.arange(7), chosen)
        some = torch.tensor([6, 2, 3])
        for part, whole in zip(
            losses.value_and_gradient(x[some], some, None if chosen is None else chosen[some]),
            (values, gradients),
            strict=True,
        ):
            assert torch.equal(part, whole[some])
        for i, client in enumerate(alone):
            own = None if chosen is None else chosen[i : i + 1]
            value, gradient = client.value_and_gradient(x[i : i + 1], torch.arange(1), own)
            assert torch.equal(value[0], values[i])
            assert torch.equal(gradient[0], gradients[i])


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("most", [1, 5 * FEATURES, 40 * FEATURES, 10**6])
@pytest.mark.parametrize("rows", [range(5), [0], [4, 1, 3], [1, 2, 3]])
def test_pieces_hold_every_sample_once_and_are_small(rows: Any, most: int, lanes: int) -> None:
    (stack,) = stack_clients(clients_of([61, 60, 53, 61, 49], "cross-entropy", torch.float64), may_pad=True)
    seen: list[list[Tensor]] = [[] for _ in rows]
    for group in stack.groups(rows, None, most, lanes):
        assert isinstance(group.counts, Tensor)
        assert torch.equal(group.counts, stack.sizes[list(rows)][group.clients])
        assert torch.equal(group.share, 1 / group.counts.double())
        for begin, inputs, targets in group.pieces:
            b, k = targets.shape
            assert inputs.shape == (b, k, FEATURES)
            assert k * FEATURES <= max(most, FEATURES)
            assert inputs.numel() <= max(lanes * most, k * FEATURES)
            for place, own in zip(range(*group.clients.indices(len(rows))), inputs, strict=True):
                assert begin == sum(len(part) for part in seen[place])
                seen[place].append(own)
    for row, parts in zip(rows, seen, strict=True):
        assert torch.equal(torch.cat(parts), stack.inputs[row])


def test_the_logistic_loss_is_right_for_large_scores() -> None:
    scores = torch.tensor([-1e4, -90.0, -1e-3, 0.0, 1e-3, 90.0, 1e4], dtype=torch.float64).view(1, 1, -1)
    for target in (0.0, 0.3, 1.0):
        wanted = scores.clone().requires_grad_()
        targets = torch.full((1, scores.numel(), 1), target, dtype=torch.float64)
        expected = nnf.binary_cross_entropy_with_logits(wanted, targets.mT, reduction="none")
        (slopes,) = torch.autograd.grad(expected.sum(), wanted)
        losses, weights = linear._logistic(scores.clone(), targets)
        assert torch.allclose(losses, expected.detach()[:, 0], rtol=1e-14, atol=1e-30)
        assert torch.allclose(weights, slopes, rtol=1e-13, atol=1e-16)
