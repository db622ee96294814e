"""Perceptrons in closed form: automatic differentiation's gradients, and other models are left to it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, prune

import fedfw
from fedfw.errors import NonFiniteError
from fedfw.problems.modules import ModuleLosses
from fedfw.problems.perceptrons import ACTIVATIONS, Perceptron

LOSSES: dict[str, Any] = {
    "cross-entropy": nnf.cross_entropy,
    "logistic": nnf.binary_cross_entropy_with_logits,
    "squared": nnf.mse_loss,
}
Samples = tuple[Tensor, Tensor]


def network(widths: list[int], kinds: list[type[nn.Module]], biases: list[bool], dtype: torch.dtype) -> nn.Sequential:
    """Linear layers from width to width; of the kinds and biases as many are used as are wanted."""
    modules: list[nn.Module] = []
    for k, (f, c) in enumerate(pairwise(widths)):
        modules += [nn.Linear(f, c, bias=biases[k % len(biases)], dtype=dtype), kinds[k % len(kinds)]()]
    return nn.Sequential(*modules[:-1])


def clients_of(sizes: list[int], f: int, c: int, loss: str, dtype: torch.dtype) -> list[Samples]:
    clients = []
    for size in sizes:
        inputs, classes = torch.randn(size, f, dtype=dtype), torch.randint(0, c, (size,))
        clients.append((inputs, classes if loss == "cross-entropy" else nnf.one_hot(classes, c).to(dtype)))
    return clients


def losses_of(model: nn.Module, loss: Any, clients: list[Samples]) -> ModuleLosses:
    losses = fedfw.Problem(model, loss, clients).losses
    assert isinstance(losses, ModuleLosses)
    return losses


def is_closed_form(losses: ModuleLosses) -> bool:
    return isinstance(losses._together, Perceptron)


def by_autograd(model: nn.Module, loss: Any, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and gradient of one client, by the model itself, in float64."""
    model = model.double()
    nn.utils.vector_to_parameters(x.double(), model.parameters())
    value = loss(model(inputs.double()), targets.double() if targets.is_floating_point() else targets)
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
            value, gradient = by_autograd(model, LOSSES[loss], x[j], inputs[picks[j]], targets[picks[j]])
        assert abs(float(values[j] - value)) <= tol * (1 + float(value))
        assert float((gradients[j] - gradient).abs().max()) <= tol * (1 + float(gradient.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("m", "widths"), [(50, [60, 64, 10]), (7, [5, 64, 10]), (1, [64, 32, 10]), (33, [784, 30, 2])])
def test_a_client_alone_has_the_gradient_that_it_has_among_others(
    m: int, widths: list[int], dtype: torch.dtype
) -> None:
    """As the deployed client is alone, up to how products of odd sizes round."""
    torch.manual_seed(0)
    model = network(widths, [nn.ReLU], [True], dtype)
    clients = clients_of([m] * 4, widths[0], widths[-1], "cross-entropy", dtype)
    x = torch.randn(4, sum(p.numel() for p in model.parameters()), dtype=dtype) / 10
    together = losses_of(model, nnf.cross_entropy, clients)
    values, gradients = together.value_and_gradient(x, together.everyone(x.device), None)
    for i in range(4):
        alone = losses_of(model, nnf.cross_entropy, clients[i : i + 1])
        value, gradient = alone.value_and_gradient(x[i : i + 1].clone(), torch.tensor([0]), None)
        assert abs(float(value[0] - values[i])) <= 4 * torch.finfo(dtype).eps * float(values[i])
        assert float((gradient[0] - gradients[i]).abs().max()) <= 8 * torch.finfo(dtype).eps * float(
            gradient.abs().max()
        )


def _plain() -> nn.Sequential:
    return network([4, 5, 3], [nn.ReLU], [True], torch.float32)


def _frozen() -> nn.Module:
    model = _plain()
    model[0].weight.requires_grad_(False)
    return model


def _hooked() -> nn.Module:
    model = _plain()
    model[2].register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def _hooked_as_a_whole() -> nn.Module:
    model = _plain()
    model.register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def _twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def _spectral() -> nn.Module:
    model = _plain()
    parametrizations.weight_norm(model[0])
    return model


def _pruned() -> nn.Module:
    """Pruning leaves the bias in front of the weight."""
    model = _plain()
    prune.l1_unstructured(model[0], "weight", amount=2)
    prune.remove(model[0], "weight")
    return model


def _weight_that_is_no_parameter() -> nn.Module:
    model = _plain()
    fixed = model[0].weight.detach().clone()
    del model[0].weight
    model[0].weight = fixed  # type: ignore[assignment]
    return model


def _activation_with_a_parameter() -> nn.Module:
    model = _plain()
    model[1].weight = nn.Parameter(torch.ones(2))
    return model


class _Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _with_its_own_parameter() -> nn.Module:
    model = _plain()
    model.register_parameter("weight", nn.Parameter(torch.ones(2)))
    return model


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "frozen": _frozen,
    "a hook of a layer": _hooked,
    "a hook of the model": _hooked_as_a_whole,
    "a layer that is there twice": _twice,
    "a parametrization": _spectral,
    "a weight behind its bias": _pruned,
    "a weight that is no parameter": _weight_that_is_no_parameter,
    "an activation with a parameter": _activation_with_a_parameter,
    "a forward of its own": lambda: _Doubled(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    "a parameter of its own": _with_its_own_parameter,
    "another activation": lambda: network([4, 5, 3], [nn.GELU], [True], torch.float32),
    "two activations": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Tanh(), nn.Linear(5, 3)),
    "an activation at the end": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Tanh()),
    "an activation in front": lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 3), nn.ReLU()),
    "layers within layers": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 3))),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_are_differentiated_as_they_are(kind: str) -> None:
    torch.manual_seed(0)
    model = OTHERS[kind]()
    clients = clients_of([6, 6], 4, 3, "cross-entropy", torch.float32)
    problem = fedfw.Problem(model, nnf.cross_entropy, clients)
    assert isinstance(problem.losses, ModuleLosses)
    assert not is_closed_form(problem.losses)
    trained = [p for p in model.parameters() if p.requires_grad]
    x = nn.utils.parameters_to_vector(trained).detach()
    values, gradients = problem.losses.value_and_gradient(x.expand(2, -1), torch.tensor([0, 1]), None)
    for i, (inputs, targets) in enumerate(clients):
        loss = nnf.cross_entropy(model(inputs), targets)
        wanted = nn.utils.parameters_to_vector(
            torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        )
        torch.testing.assert_close(values[i], loss.detach())
        torch.testing.assert_close(gradients[i], wanted)


def test_an_activation_may_be_there_twice() -> None:
    twice = nn.Tanh()
    model = nn.Sequential(nn.Linear(4, 5), twice, nn.Linear(5, 5), twice, nn.Linear(5, 3))
    assert is_closed_form(losses_of(model, nnf.cross_entropy, clients_of([6], 4, 3, "cross-entropy", torch.float32)))


def test_other_losses_and_samples_are_left_to_automatic_differentiation() -> None:
    clients = clients_of([6, 6], 4, 3, "cross-entropy", torch.float32)
    assert is_closed_form(losses_of(_plain(), nn.CrossEntropyLoss(), clients))
    assert not is_closed_form(losses_of(_plain(), nn.CrossEntropyLoss(label_smoothing=0.1), clients))
    rows = [(torch.randn(6, 2, 4), torch.randn(6, 2, 3)) for _ in range(2)]
    assert not is_closed_form(losses_of(_plain(), nnf.mse_loss, rows))
    some = [(torch.randn(20, 4), torch.randn(20, 3)), rows[0]]
    assert not is_closed_form(losses_of(_plain(), nnf.mse_loss, some))


def test_a_hook_for_all_modules_is_seen() -> None:
    clients = clients_of([6, 6], 4, 3, "cross-entropy", torch.float32)
    handle = register_module_forward_hook(lambda module, inputs, output: 2 * output)
    try:
        assert not is_closed_form(losses_of(_plain(), nnf.cross_entropy, clients))
    finally:
        handle.remove()


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_whose_parameters_changed_places_has_its_own_gradient(bias: bool) -> None:
    """Also alone: pruning leaves the bias in front of the weight."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=bias)
    prune.l1_unstructured(model, "weight", amount=2)
    prune.remove(model, "weight")
    clients = clients_of([6, 5], 4, 3, "cross-entropy", torch.float32)
    problem = fedfw.Problem(model, nnf.cross_entropy, clients)
    values, gradients = problem.losses.value_and_gradient(problem.start.expand(2, -1), torch.tensor([0, 1]), None)
    for i, (inputs, targets) in enumerate(clients):
        loss = nnf.cross_entropy(model(inputs), targets)
        wanted = nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))
        torch.testing.assert_close(values[i], loss.detach())
        torch.testing.assert_close(gradients[i], wanted)


def test_autocast_changes_nothing() -> None:
    torch.manual_seed(0)
    clients = clients_of([6, 6], 4, 3, "cross-entropy", torch.float32)
    losses = losses_of(_plain(), nnf.cross_entropy, clients)
    x, who = torch.randn(2, 43), torch.tensor([0, 1])
    plain = losses.value_and_gradient(x, who, None)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, plain, losses.value_and_gradient(x, who, None)))


def test_a_nan_names_its_client() -> None:
    clients = clients_of([6, 6, 6], 4, 3, "cross-entropy", torch.float32)
    clients[1][0][2, 3] = torch.nan
    problem = fedfw.Problem(_plain(), nnf.cross_entropy, clients, convex=False)
    with pytest.raises(NonFiniteError, match="round 0: NaN or infinity in the loss or gradient of client 1"):
        fedfw.simulate(problem, fedfw.FedFW("l2:5", schedule="nonconvex"), rounds=2)
