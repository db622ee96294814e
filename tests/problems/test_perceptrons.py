"""Perceptrons in closed form: automatic differentiation's gradients, and other models are left to
it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import fedfw
from fedfw.problems import linear
from fedfw.problems.completion import MatrixCompletion
from fedfw.problems.modules import ModuleLosses
from fedfw.problems.perceptrons import ACTIVATIONS, Perceptron
from fedfw.problems.scores import _logistic

LOSSES: dict[str, Any] = {
    "cross-entropy": nnf.cross_entropy,
    "logistic": nnf.binary_cross_entropy_with_logits,
    "squared": nnf.mse_loss,
}
Samples = tuple[Tensor, Tensor]


def network(
    widths: list[int], kinds: list[type[nn.Module]], biases: list[bool], dtype: torch.dtype
) -> nn.Sequential:
    """Linear layers from width to width; of the kinds and biases as many are used as are wanted."""
    modules: list[nn.Module] = []
    for k, (f, c) in enumerate(pairwise(widths)):
        modules += [
            nn.Linear(f, c, bias=biases[k % len(biases)], dtype=dtype),
            kinds[k % len(kinds)](),
        ]
    return nn.Sequential(*modules[:-1])


def clients_of(sizes: list[int], f: int, c: int, loss: str, dtype: torch.dtype) -> list[Samples]:
    clients = []
    for size in sizes:
        inputs, classes = torch.randn(size, f, dtype=dtype), torch.randint(0, c, (size,))
        clients.append(
            (inputs, classes if loss == "cross-entropy" else nnf.one_hot(classes, c).to(dtype))
        )
    return clients


def losses_of(model: nn.Module, loss: Any, clients: list[Samples]) -> Any:
    losses = fedfw.Problem(model, loss, clients).losses
    assert isinstance(losses, ModuleLosses | linear.LinearLosses)
    return losses


def is_closed_form(losses: Any) -> bool:
    if isinstance(losses, linear.LinearLosses):  # of a single layer
        return True
    return isinstance(losses._together, Perceptron)


def by_autograd(
    model: nn.Module, loss: Any, x: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss and gradient of one client, by the model itself, in float64."""
    model = model.double()
    nn.utils.vector_to_parameters(x.double(), model.parameters())
    value = loss(
        model(inputs.double()), targets.double() if targets.is_floating_point() else targets
    )
    gradients = torch.autograd.grad(value, list(model.parameters()))
    return value.detach(), torch.cat([gradient.flatten() for gradient in gradients])


@given(
    widths=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    kinds=st.lists(st.sampled_from(list(ACTIVATIONS)), min_size=1, max_size=3),
    biases=st.lists(st.booleans(), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    loss=st.sampled_from(list(LOSSES)),
    picked=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 100),
)
def test_the_gradient_of_unequal_clients_is_that_of_automatic_differentiation(
    widths: list[int],
    kinds: list[type[nn.Module]],
    biases: list[bool],
    sizes: list[int],
    loss: str,
    picked: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    model = network(widths, kinds, biases, dtype)
    clients = clients_of(sizes, widths[0], widths[-1], loss, dtype)
    losses = losses_of(model, LOSSES[loss], clients)
    assert is_closed_form(losses)
    who = torch.randperm(len(sizes))[: max(1, len(sizes) - 1)]  # somebody is absent
    x = torch.randn(len(who), sum(p.numel() for p in model.parameters()), dtype=dtype)
    picks = torch.stack([torch.randint(0, sizes[i], (3,)) for i in who]) if picked else None
    values, gradients = losses.value_and_gradient(x, who, picks)
    exact_values, exact_gradients = losses.exactly(x, who)
    tol = 1e-5 if dtype == torch.float32 else 1e-13
    for j, i in enumerate(who.tolist()):
        inputs, targets = clients[i]
        value, gradient = by_autograd(model, LOSSES[loss], x[j], inputs, targets)
        torch.testing.assert_close(exact_values[j], value, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(exact_gradients[j], gradient, rtol=1e-12, atol=1e-13)
        if picks is not None:
            value, gradient = by_autograd(
                model, LOSSES[loss], x[j], inputs[picks[j]], targets[picks[j]]
            )
        assert abs(float(values[j] - value)) <= tol * (1 + float(value))
        assert float((gradients[j] - gradient).abs().max()) <= tol * (
            1 + float(gradient.abs().max())
        )


class _Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def doubles(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Double what a module gives: a forward hook."""
    return 2 * output


def prune_first(model: nn.Sequential) -> None:
    """Prune the first layer, which leaves the bias in front of the weight."""
    prune.l1_unstructured(model[0], "weight", amount=2)
    prune.remove(model[0], "weight")


def fix_weight(model: nn.Sequential) -> None:
    """Make the first layer's weight a tensor that is no parameter."""
    fixed = model[0].weight.detach().clone()
    del model[0].weight
    model[0].weight = fixed


def plain() -> nn.Sequential:
    return network([4, 5, 3], [nn.ReLU], [True], torch.float32)


CHANGED: dict[str, Callable[[nn.Sequential], Any]] = {
    "frozen": lambda model: model[0].weight.requires_grad_(False),
    "a hook of a layer": lambda model: model[2].register_forward_hook(doubles),
    "a hook of the model": lambda model: model.register_forward_hook(doubles),
    "a parametrization": lambda model: parametrizations.weight_norm(model[0]),
    "a weight behind its bias": prune_first,
    "a weight that is no parameter": fix_weight,
    "an activation with a parameter": lambda model: setattr(
        model[1], "weight", nn.Parameter(torch.ones(2))
    ),
    "a parameter of its own": lambda model: model.register_parameter(
        "weight", nn.Parameter(torch.ones(2))
    ),
}
LAYER = nn.Linear(4, 4)
OTHERS: dict[str, nn.Module] = {
    "a layer that is there twice": nn.Sequential(LAYER, nn.ReLU(), LAYER),
    "a forward of its own": _Doubled(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    "another activation": nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)),
    "two activations": nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Tanh(), nn.Linear(5, 3)),
    "an activation at the end": nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Tanh()
    ),
    "an activation in front": nn.Sequential(nn.ReLU(), nn.Linear(4, 3), nn.ReLU()),
    "layers within layers": nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 3))
    ),
}


@pytest.mark.parametrize("kind", [*CHANGED, *OTHERS])
def test_other_models_are_differentiated_as_they_are(kind: str) -> None:
    torch.manual_seed(0)
    model = OTHERS.get(kind, plain())
    CHANGED.get(kind, id)(model)
    clients = clients_of([6, 6], 4, 3, "cross-entropy", torch.float32)
    problem = fedfw.Problem(model, nnf.cross_entropy, clients)
    assert not is_closed_form(problem.losses)
    trained = [p for p in model.parameters() if p.requires_grad]
    x = nn.utils.parameters_to_vector(trained).detach()
    values, gradients = problem.losses.value_and_gradient(
        x.expand(2, -1), torch.tensor([0, 1]), None
    )
    for i, (inputs, targets) in enumerate(clients):
        loss = nnf.cross_entropy(model(inputs), targets)
        wanted = nn.utils.parameters_to_vector(
            torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        )
        torch.testing.assert_close(values[i], loss.detach())
        torch.testing.assert_close(gradients[i], wanted)


# --- A linear layer's samples are multiplied a piece at a time: the results are those of all at
# once ---


@pytest.fixture
def _by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "is_compiled_for", lambda *samples: False)


@pytest.mark.usefixtures("_by_torch")
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    loss=st.sampled_from(list(LOSSES)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    shape=st.tuples(st.integers(1, 12), st.integers(2, 4), st.booleans()),
    samples=st.sampled_from([1, 10, 10**6]),
    picked=st.booleans(),
    seed=st.integers(0, 100),
)
def test_pieces_of_any_length_give_the_gradient(
    sizes: list[int],
    shape: tuple[int, int, bool],
    samples: int,
    picked: bool,
    seed: int,
    loss: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(seed)
    model = nn.Linear(*shape, dtype=dtype)
    monkeypatch.setitem(linear._PIECE, "cpu", samples * shape[0] * dtype.itemsize)
    monkeypatch.setattr(linear, "_PER_WEIGHT", 0)
    clients = clients_of(sizes, shape[0], shape[1], loss, dtype)
    losses = fedfw.Problem(model, LOSSES[loss], clients).losses
    who = torch.randperm(len(sizes))[: max(1, len(sizes) - 1)]
    x = torch.randn(len(who), sum(p.numel() for p in model.parameters()), dtype=dtype)
    picks = torch.stack([torch.randint(0, sizes[i], (23,)) for i in who]) if picked else None
    found = [losses.value_and_gradient(x, who, picks), losses.exactly(x, who)]
    for row, i in enumerate(who.tolist()):
        inputs, targets = clients[i]
        some = (inputs, targets) if picks is None else (inputs[picks[row]], targets[picks[row]])
        for (values, gradients), data, tol in zip(
            found,
            (some, clients[i]),
            (1e-5 if dtype == torch.float32 else 1e-13, 1e-13),
            strict=True,
        ):
            value, gradient = by_autograd(model, LOSSES[loss], x[row], *data)
            assert abs(float(values[row] - value)) <= tol * (1 + float(value))
            assert float((gradients[row] - gradient).abs().max()) <= tol * (
                1 + float(gradient.abs().max())
            )
    if picks is None:
        assert torch.equal(losses.value(x, who), found[0][0])


@pytest.mark.usefixtures("_by_torch")
def test_the_logistic_loss_is_right_for_large_scores() -> None:
    scores = torch.tensor([-1e4, -90.0, -1e-3, 0.0, 1e-3, 90.0, 1e4], dtype=torch.float64).view(
        1, 1, -1
    )
    for target in (0.0, 0.3, 1.0):
        wanted = scores.clone().requires_grad_()
        targets = torch.full((1, scores.numel(), 1), target, dtype=torch.float64)
        expected = nnf.binary_cross_entropy_with_logits(wanted, targets.mT, reduction="none")
        (slopes,) = torch.autograd.grad(expected.sum(), wanted)
        losses, weights = _logistic(scores.clone(), targets)
        assert torch.allclose(losses, expected.detach()[:, 0], rtol=1e-14, atol=1e-30)
        assert torch.allclose(weights, slopes, rtol=1e-13, atol=1e-16)


# --- Clients whose gradients are worked out one by one: the bits of a client alone, for every kind
# of losses ---

SEPARATE_FEATURES, CLASSES = 7, 3
SEPARATE_SIZES = (9, 1, 23, 16, 9)
"""Of the clients: two have one size, one has a single sample."""
SEPARATE_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def labelled(size: int, seed: int, dtype: torch.dtype) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, SEPARATE_FEATURES, generator=generator, dtype=dtype)
    return inputs, torch.randint(0, CLASSES, (size,), generator=generator)


def measured(size: int, seed: int, dtype: torch.dtype) -> Samples:
    inputs, classes = labelled(size, seed, dtype)
    return inputs, nnf.one_hot(classes, CLASSES).to(dtype) + inputs[:, :CLASSES]


def survived(size: int, seed: int, dtype: torch.dtype) -> Samples:
    inputs, classes = labelled(size, seed, dtype)
    return inputs, torch.stack([(classes > 0).to(dtype), inputs[:, 0].abs() + 0.1], 1)


def rated(size: int, seed: int, dtype: torch.dtype) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (size, 2), generator=generator), torch.randn(
        size, generator=generator, dtype=dtype
    )


def some_ignored(size: int, seed: int, dtype: torch.dtype) -> Samples:
    """Only the client with the seed 2 has samples that do not count."""
    inputs, classes = labelled(size, seed, dtype)
    return inputs, classes if seed != 2 else torch.where(torch.arange(size) % 4 == 0, -100, classes)


def perceptron(between: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(SEPARATE_FEATURES, 9), between(), nn.Linear(9, CLASSES))


def convolutional() -> nn.Module:
    layers = nn.Unflatten(1, (1, SEPARATE_FEATURES)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(3 * (SEPARATE_FEATURES - 1), CLASSES))


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Linear(SEPARATE_FEATURES, 5),
        nn.BatchNorm1d(5, track_running_stats=False),
        nn.Linear(5, CLASSES),
    )


def spread(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that compares a client's samples with each other."""
    return (outputs - outputs.mean(0)).square().mean() + nnf.cross_entropy(outputs, targets)


Make = tuple[
    Callable[[], nn.Module], Any, Callable[[int, int, torch.dtype], Samples], dict[str, Any]
]
KINDS: dict[str, Make] = {
    "softmax": (lambda: nn.Linear(SEPARATE_FEATURES, CLASSES), nnf.cross_entropy, labelled, {}),
    "softmax with l2": (
        lambda: nn.Linear(SEPARATE_FEATURES, CLASSES),
        nnf.cross_entropy,
        labelled,
        {"l2": 0.1},
    ),
    "least squares": (
        lambda: nn.Linear(SEPARATE_FEATURES, CLASSES, bias=False),
        nnf.mse_loss,
        measured,
        {},
    ),
    "class weights": (
        lambda: nn.Linear(SEPARATE_FEATURES, CLASSES),
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
    "Cox": (lambda: nn.Linear(SEPARATE_FEATURES, 1, bias=False), fedfw.cox_loss, survived, {}),
    "completion": (lambda: MatrixCompletion(4, 4), nnf.mse_loss, rated, {}),
}
SINGLE = {"BatchNorm", "a loss of the client", "Cox", "class weights"}
"""Kinds whose clients have two samples at least, as the statistics of one sample are nothing."""


def clients_of_separate(name: str, dtype: torch.dtype) -> list[Samples]:
    _, _, make, _ = KINDS[name]
    sizes = [max(size, 2) for size in SEPARATE_SIZES] if name in SINGLE else SEPARATE_SIZES
    return [make(size, seed, dtype) for seed, size in enumerate(sizes)]


def problem_of(
    name: str, clients: Sequence[Samples], dtype: torch.dtype, separate: bool = True
) -> fedfw.Problem:
    model, loss, _, options = KINDS[name]
    torch.manual_seed(0)
    return fedfw.Problem(model().to(dtype), loss, clients, separate=separate, **options)


def elsewhere(x: Tensor) -> Tensor:
    """The same point, at another place in memory than a new tensor would have."""
    held = x.new_empty(x.numel() + 3)
    return held[3:].view_as(x).copy_(x)


def same(one: Sequence[Tensor], other: Sequence[Tensor], row: int) -> bool:
    return all(torch.equal(a[row : row + 1], b) for a, b in zip(one, other, strict=True))


@SEPARATE_DTYPES
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore:all parameters of this network are zero")
def test_every_client_has_the_bits_that_it_has_alone(name: str, dtype: torch.dtype) -> None:
    clients = clients_of_separate(name, dtype)
    problem = problem_of(name, clients, dtype)
    generator = torch.Generator().manual_seed(1)
    x = problem.start + 0.1 * torch.randn(
        len(clients), len(problem.start), generator=generator, dtype=dtype
    )
    losses, everyone = problem.losses, problem.losses.all_clients(x.device)
    factors = torch.linspace(0.1, 0.7, len(clients), dtype=dtype)
    found = losses.value_and_gradient(x, everyone, None)
    weighted = losses.weighted(x.double(), everyone, None, factors, dtype)
    exact, values = losses.exactly(x, everyone), losses.value(x, everyone)
    some = torch.tensor([3, 0])
    of_some = losses.value_and_gradient(x[some], some, None)
    for i, samples in enumerate(clients):
        own = problem_of(name, [samples], dtype)
        alone, who, point = own.losses, own.losses.all_clients(x.device), elsewhere(x[i : i + 1])
        one = alone.value_and_gradient(point, who, None)
        assert same(found, one, i)
        assert same(
            weighted, alone.weighted(point.double(), who, None, factors[i : i + 1], dtype), i
        )
        assert same(exact, alone.exactly(point, who), i)
        assert torch.equal(values[i : i + 1], alone.value(point, who))
        if i in some:
            assert same(of_some, one, some.tolist().index(i))
    assert found[1].dtype == dtype
    assert exact[1].dtype == torch.float64
    together = problem_of(name, clients, dtype, separate=False).losses
    rough = 1e-12 if dtype == torch.float64 else 1e-5
    for one, other in zip(
        found, together.value_and_gradient(x, together.all_clients(x.device), None), strict=True
    ):
        assert torch.allclose(one, other, atol=rough, rtol=1e-4)
    assert [part.shape for part in losses.data()] == [part.shape for part in together.data()]
    assert losses.sizes.tolist() == [len(samples[0]) for samples in clients]
    known, expected = losses.smoothness(), together.smoothness()
    assert (known is None) == (expected is None)
    if known is not None and expected is not None:
        assert torch.allclose(known, expected, rtol=5e-3)
