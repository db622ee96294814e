"""The models by name: gradients against autograd, convexity, smoothness, memory in pieces."""

from typing import Any

import pytest
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw.data import Data, Part
from fedfw.models import MODELS
from fedfw.presets import ProblemOptions, make_problem
from fedfw.problems.completion import CompletionLosses, MatrixCompletion
from fedfw.problems.modules import unflatten
from fedfw.rounds.setup import feasible_start


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(channels: int, side: int, samples: int = 24, classes: int = 4) -> Data:
    pixels = torch.randint(
        0, 256, (samples, channels, side, side), generator=generator(), dtype=torch.uint8
    )
    part = Part(pixels, torch.arange(samples) % classes)
    return Data("made up", part, part, classes)


def numbers(samples: int = 40) -> Data:
    inputs = torch.randn(samples, 5, generator=generator())
    part = Part(inputs, inputs @ torch.arange(5.0) + 1)
    return Data("made up", part, part, None)


def two_classes(samples: int = 40) -> Data:
    inputs = torch.randn(samples, 5, generator=generator())
    part = Part(inputs, (inputs[:, 0] > 0).long())
    return Data("made up", part, part, 2)


def ratings(rows: int = 12, columns: int = 9, count: int = 70) -> Data:
    cells = torch.randperm(rows * columns, generator=generator())[:count]
    pairs = torch.stack([cells // columns, cells % columns], 1)
    part = Part(pairs, torch.randn(count, generator=generator(1)), {"user": pairs[:, 0]})
    return Data("made up", part, part, None, (rows, columns))


def texts(classes: int = 7, length: int = 6, samples: int = 24) -> Data:
    windows = torch.randint(classes, (samples, length + 1), generator=generator(), dtype=torch.int8)
    part = Part(windows[:, :-1], windows[:, 1:], {"speaker": torch.arange(samples) % 4})
    return Data("made up", part, part, classes)


def survival(samples: int = 40) -> Data:
    inputs = torch.randn(samples, 5, generator=generator())
    events, times = (
        torch.arange(samples) % 2,
        torch.rand(samples, generator=generator(1)).mul(9).ceil(),
    )
    part = Part(inputs, torch.stack([events.float(), times], 1))
    return Data("made up", part, part, None)


def problem_of(data: Data, model: str, **options: Any) -> fedfw.Problem:
    return make_problem(data, ProblemOptions(model=model, **({"partition": "iid"} | options)))


TASKS = {
    "mclr": images(1, 6),
    "logistic": two_classes(),
    "linear": numbers(),
    "completion": ratings(),
    "cox": survival(),
    "mlp": images(1, 6),
    "cnn": images(1, 16),
    "cnn-cifar": images(3, 16),
    "transformer": texts(),
    "maxmin-mlp": images(1, 6),
    "lipschitz-cnn": images(3, 10),
}


def test_every_model_has_a_task_here() -> None:
    assert set(TASKS) == set(MODELS)


@pytest.mark.parametrize("name", TASKS)
def test_gradients_are_those_of_autograd(name: str) -> None:
    data, kind = TASKS[name], MODELS[name]
    problem = problem_of(data, name, clients=4)
    assert problem.convex is kind.convex
    parts = fedfw.data.partition("iid", data.train, 4, data.classes, 0)
    x = problem.start + 0.1 * torch.randn(4, len(problem.start), generator=generator(2))
    values, gradients = problem.losses.value_and_gradient(x, torch.arange(4), None)
    alone = problem.losses.value(x, torch.arange(4))
    for i, part in enumerate(parts):
        inputs, targets = kind.samples(data.train.take(part))
        model = problem.trained(x[i])
        loss = kind.loss(model(inputs), targets)
        loss.backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert torch.allclose(gradients[i], expected, atol=1e-5)
        assert float(values[i]) == pytest.approx(loss.item(), rel=1e-5)
        assert float(alone[i]) == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("name", [name for name, kind in MODELS.items() if kind.convex])
def test_smoothness_bounds_how_fast_gradients_change(name: str) -> None:
    problem = problem_of(TASKS[name], name, clients=4, l2=0.3)
    L = problem.smoothness()
    p = len(problem.start)
    steepest = 0.0
    for seed in range(50):
        x = torch.randn(4, p, generator=generator(seed)) * 10 ** (seed % 5 - 3)
        y = x + torch.randn(4, p, generator=generator(1000 + seed)) * 1e-2
        who = torch.arange(4)
        change = (
            problem.losses.value_and_gradient(x, who, None)[1]
            - problem.losses.value_and_gradient(y, who, None)[1]
        )
        steepest = max(steepest, float((change.norm(dim=1) / (x - y).norm(dim=1)).max()))
    assert steepest <= L * 1.01


def test_the_l2_term() -> None:
    plain, ridge = (problem_of(TASKS["mclr"], "mclr", clients=3, l2=l2) for l2 in (0.0, 0.5))
    x = torch.randn(len(plain.start), generator=generator())
    value, gradient = plain.value_and_gradient(x)
    more, steeper = ridge.value_and_gradient(x)
    assert more - value == pytest.approx(0.25 * float(x.square().sum()), rel=1e-5)
    assert torch.allclose(steeper - gradient, 0.5 * x, atol=1e-5)
    assert ridge.value(x) == pytest.approx(more, rel=1e-6)
    assert ridge.test(x) == plain.test(x)
    assert ridge.convex is True


def test_completion_with_minibatches_and_repeated_entries() -> None:
    pairs = torch.tensor([[0, 0], [0, 0], [1, 2]])
    values = torch.tensor([1.0, 3.0, 5.0])
    problem = fedfw.Problem(MatrixCompletion(2, 3), nnf.mse_loss, [(pairs, values)])
    assert isinstance(problem.losses, CompletionLosses)
    value, gradient = problem.value_and_gradient(torch.zeros(6))
    assert value == pytest.approx((1 + 9 + 25) / 3)
    assert gradient.tolist() == pytest.approx([-8 / 3, 0, 0, 0, 0, -10 / 3])
    assert problem.smoothness() == pytest.approx(2 * 2 / 3)
    picks = torch.tensor([[1, 1]])
    value, gradient = problem.losses.value_and_gradient(torch.zeros(1, 6), torch.tensor([0]), picks)
    assert value.tolist() == [9.0]
    assert gradient[0, 0] == -6.0
    outside = (torch.tensor([[0, 3]]), torch.ones(1))
    with pytest.raises(ValueError, match="client 1 holds an entry outside the matrix of 2 x 3"):
        fedfw.Problem(MatrixCompletion(2, 3), nnf.mse_loss, [(pairs, values), outside])


@pytest.mark.parametrize("name", ["maxmin-mlp", "lipschitz-cnn"])
def test_networks_for_certificates_begin_with_the_constant_that_they_are_given(name: str) -> None:
    """Isometries that are projected on balls of one radius use it up."""
    problem = problem_of(TASKS[name], name, clients=2)
    for L in (0.5, 1.0):
        D = problem.bind(fedfw.LipschitzNet(L))
        start = feasible_start(D, problem.start)
        weights = [part for part, shape in zip(D.parts, D.shapes, strict=True) if len(shape) > 1]  # type: ignore[attr-defined]
        pieces = unflatten(start, problem.shapes)
        matrices = [piece.flatten(1) for piece in pieces.values() if piece.ndim > 1]
        for ball, matrix in zip(weights, matrices, strict=True):
            assert torch.allclose(torch.linalg.svdvals(matrix), torch.tensor(ball.r), rtol=1e-4)
        assert fedfw.lipschitz_bound(problem.trained(start)) <= L
