"""Clients whose gradients are worked out one by one: the bits of a client alone, for every kind of losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.problems.base import WeightedGradient
from fedfw.problems.completion import MatrixCompletion

FEATURES, CLASSES = 7, 3
SIZES = (9, 1, 23, 16, 9)
"""Of the clients: two have one size, one has a single sample."""
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
Samples = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def labelled(size: int, seed: int, dtype: torch.dtype) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, FEATURES, generator=generator, dtype=dtype)
    return inputs, torch.randint(0, CLASSES, (size,), generator=generator)


def measured(size: int, seed: int, dtype: torch.dtype) -> Samples:
    inputs, classes = labelled(size, seed, dtype)
    return inputs, nnf.one_hot(classes, CLASSES).to(dtype) + inputs[:, :CLASSES]


def survived(size: int, seed: int, dtype: torch.dtype) -> Samples:
    inputs, classes = labelled(size, seed, dtype)
    return inputs, torch.stack([(classes > 0).to(dtype), inputs[:, 0].abs() + 0.1], 1)


def rated(size: int, seed: int, dtype: torch.dtype) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (size, 2), generator=generator), torch.randn(size, generator=generator, dtype=dtype)


def some_ignored(size: int, seed: int, dtype: torch.dtype) -> Samples:
    """Only the client with the seed 2 has samples that do not count."""
    inputs, classes = labelled(size, seed, dtype)
    return inputs, classes if seed != 2 else torch.where(torch.arange(size) % 4 == 0, -100, classes)


def perceptron(between: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 9), between(), nn.Linear(9, CLASSES))


def convolutional() -> nn.Module:
    layers = nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(3 * (FEATURES - 1), CLASSES))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, CLASSES))


def spread(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that compares a client's samples with each other."""
    return (outputs - outputs.mean(0)).square().mean() + nnf.cross_entropy(outputs, targets)


Make = tuple[Callable[[], nn.Module], Any, Callable[[int, int, torch.dtype], Samples], dict[str, Any]]
KINDS: dict[str, Make] = {
    "softmax": (lambda: nn.Linear(FEATURES, CLASSES), nnf.cross_entropy, labelled, {}),
    "softmax with l2": (lambda: nn.Linear(FEATURES, CLASSES), nnf.cross_entropy, labelled, {"l2": 0.1}),
    "least squares": (lambda: nn.Linear(FEATURES, CLASSES, bias=False), nnf.mse_loss, measured, {}),
    "class weights": (
        lambda: nn.Linear(FEATURES, CLASSES),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])),
        labelled,
        {},
    ),
    "ignored samples": (lambda: perceptron(nn.Tanh), nn.CrossEntropyLoss(), some_ignored, {}),
    "perceptron": (lambda: perceptron(nn.ReLU), nnf.cross_entropy, labelled, {}),
    "GELU": (lambda: perceptron(nn.GELU), nnf.cross_entropy, labelled, {}),
    "convolutions": (convolutional, nnf.cross_entropy, labelled, {}),
    "BatchNorm": (normalised, nnf.cross_entropy, labelled, {}),
    "a loss of the client": (lambda: perceptron(nn.ReLU), spread, labelled, {"per": "client"}),
    "Cox": (lambda: nn.Linear(FEATURES, 1, bias=False), fedfw.cox_loss, survived, {}),
    "completion": (lambda: MatrixCompletion(4, 4), nnf.mse_loss, rated, {}),
}
SINGLE = {"BatchNorm", "a loss of the client", "Cox", "class weights"}
"""Kinds whose clients have two samples at least, as the statistics of one sample are nothing."""


def clients_of(name: str, dtype: torch.dtype) -> list[Samples]:
    _, _, make, _ = KINDS[name]
    sizes = [max(size, 2) for size in SIZES] if name in SINGLE else SIZES
    return [make(size, seed, dtype) for seed, size in enumerate(sizes)]


def problem_of(name: str, clients: Sequence[Samples], dtype: torch.dtype, separate: bool = True) -> fedfw.Problem:
    model, loss, _, options = KINDS[name]
    torch.manual_seed(0)
    return fedfw.Problem(model().to(dtype), loss, clients, separate=separate, **options)


def elsewhere(x: Tensor) -> Tensor:
    """The same point, at another place in memory than a new tensor would have."""
    held = x.new_empty(x.numel() + 3)
    return held[3:].view_as(x).copy_(x)


def same(one: Sequence[Tensor], other: Sequence[Tensor], row: int) -> bool:
    return all(torch.equal(a[row : row + 1], b) for a, b in zip(one, other, strict=True))


@DTYPES
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore:all parameters of this network are zero")
def test_every_client_has_the_bits_that_it_has_alone(name: str, dtype: torch.dtype) -> None:
    clients = clients_of(name, dtype)
    problem = problem_of(name, clients, dtype)
    generator = torch.Generator().manual_seed(1)
    x = problem.start + 0.1 * torch.randn(len(clients), len(problem.start), generator=generator, dtype=dtype)
    losses, everyone = problem.losses, problem.losses.everyone(x.device)
    factors = torch.linspace(0.1, 0.7, len(clients), dtype=dtype)
    found = losses.value_and_gradient(x, everyone, None)
    weighted = losses.weighted(x.double(), everyone, None, factors, dtype)
    exact, values = losses.exactly(x, everyone), losses.value(x, everyone)
    some = torch.tensor([3, 0])
    of_some = losses.value_and_gradient(x[some], some, None)
    for i, samples in enumerate(clients):
        own = problem_of(name, [samples], dtype)
        alone, who, point = own.losses, own.losses.everyone(x.device), elsewhere(x[i : i + 1])
        one = alone.value_and_gradient(point, who, None)
        assert same(found, one, i)
        assert same(weighted, alone.weighted(point.double(), who, None, factors[i : i + 1], dtype), i)
        assert same(exact, alone.exactly(point, who), i)
        assert torch.equal(values[i : i + 1], alone.value(point, who))
        if i in some:
            assert same(of_some, one, some.tolist().index(i))
    assert found[1].dtype == dtype
    assert exact[1].dtype == torch.float64
    together = problem_of(name, clients, dtype, separate=False).losses
    rough = 1e-12 if dtype == torch.float64 else 1e-5
    for one, other in zip(found, together.value_and_gradient(x, together.everyone(x.device), None), strict=True):
        assert torch.allclose(one, other, atol=rough, rtol=1e-4)
    assert [part.shape for part in losses.data()] == [part.shape for part in together.data()]
    assert losses.sizes is not None
    assert losses.sizes.tolist() == [len(samples[0]) for samples in clients]
    known, expected = losses.smoothness(), together.smoothness()
    assert (known is None) == (expected is None)
    if known is not None and expected is not None:
        assert torch.allclose(known, expected, rtol=5e-3)


@DTYPES
@pytest.mark.parametrize("name", ["softmax", "least squares", "perceptron", "GELU", "convolutions", "completion"])
def test_minibatches_have_the_bits_that_they_have_alone(name: str, dtype: torch.dtype) -> None:
    clients = clients_of(name, dtype)
    problem = problem_of(name, clients, dtype)
    x = problem.start + torch.linspace(-0.1, 0.1, len(problem.start), dtype=dtype)
    points, everyone = x.expand(len(clients), -1), problem.losses.everyone(x.device)
    picks = torch.stack([torch.arange(4) % len(samples[0]) for samples in clients])
    found = problem.losses.value_and_gradient(points, everyone, picks)
    for i, samples in enumerate(clients):
        alone = problem_of(name, [samples], dtype).losses
        assert same(found, alone.value_and_gradient(x[None], alone.everyone(x.device), picks[i : i + 1]), i)


@DTYPES
@pytest.mark.parametrize("name", ["softmax", "perceptron", "GELU"])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_clipped_sums_have_the_bits_that_they_have_alone(norm: str, name: str, dtype: torch.dtype) -> None:
    clients = clients_of(name, dtype)
    problem = problem_of(name, clients, dtype)
    generator = torch.Generator().manual_seed(2)
    x = problem.start + 0.3 * torch.randn(len(clients), len(problem.start), generator=generator, dtype=dtype)
    everyone, count = problem.losses.everyone(x.device), torch.tensor([len(one[0]) for one in clients])
    keep = torch.rand(len(clients), max(SIZES), generator=generator) < 0.6
    for looked in (None, keep):
        found = problem.losses.clipped_gradient(x, everyone, looked, norm, 0.3, count)
        for i, samples in enumerate(clients):
            alone, row = problem_of(name, [samples], dtype).losses, slice(i, i + 1)
            theirs = None if looked is None else looked[row]
            own = elsewhere(x[row])
            one = alone.clipped_gradient(own, alone.everyone(x.device), theirs, norm, 0.3, count[row])
            assert torch.equal(found[row], one)


def test_a_gradient_that_is_not_finite_names_its_client() -> None:
    clients = clients_of("perceptron", torch.float32)
    clients[3][0][2, 1] = 1e38
    problem = problem_of("perceptron", clients, torch.float32)
    x = problem.start.expand(len(clients), -1) * 1e3
    everyone = problem.losses.everyone(x.device)
    gradient = WeightedGradient(problem.losses, problem.weights.float(), everyone, lambda: None, 4)
    with pytest.raises(fedfw.NonFiniteError, match="round 4: NaN or infinity in the loss or gradient of client 3"):
        gradient(x)


def test_it_is_an_option_of_ready_problems_and_of_checkpoints() -> None:
    plain, separate = (fedfw.load_problem("digits", clients=3, separate=separate) for separate in (False, True))
    assert [problem.separate for problem in (plain, separate)] == [False, True]
    algorithm = fedfw.FedAvg("l2:5", lr=0.1)
    one, other = (fedfw.simulate(problem, algorithm, rounds=3).x for problem in (plain, separate))
    assert torch.allclose(one, other, atol=1e-5)
    from fedfw.problems.digest import describe_problem

    assert describe_problem(plain).keys() < describe_problem(separate).keys()
