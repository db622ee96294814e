"""Gradients of every back end against autograd, one client at a time."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import fedfw
from fedfw.problems.linear import LinearLosses
from fedfw.problems.modules import ModuleLosses
from fedfw.problems.stacks import stack_clients


def samples(size: int, features: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(size, features, generator=generator, dtype=torch.float64),
        torch.randint(0, classes, (size,), generator=generator),
    )


Pair = tuple[torch.Tensor, torch.Tensor]


def by_autograd(problem: fedfw.Problem, x: torch.Tensor, data: Pair) -> torch.Tensor:
    model = problem.trained(x)
    problem.loss(model(data[0]), data[1]).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


SIZES = {"equal": [30] * 6, "similar": [30, 28, 31, 25, 30, 29], "unequal": [3, 50, 7, 50, 200, 1]}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", ["cross-entropy", "logistic", "squared", "no bias", "network"])
def test_gradients_are_those_of_autograd(kind: str, sizes: str) -> None:
    clients = [samples(size, 9, 4, i) for i, size in enumerate(SIZES[sizes])]
    model: nn.Module = nn.Linear(9, 4, bias=kind != "no bias").double()
    loss = nnf.cross_entropy
    if kind in ("logistic", "squared"):
        loss = nnf.binary_cross_entropy_with_logits if kind == "logistic" else nnf.mse_loss
        clients = [(x, nnf.one_hot(y, 4).double()) for x, y in clients]
    if kind == "network":
        model = nn.Sequential(nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    problem = fedfw.Problem(model, loss, clients)
    assert isinstance(problem.losses, ModuleLosses if kind == "network" else LinearLosses)
    assert problem.convex is (kind != "network")
    p = len(problem.start)
    generator = torch.Generator().manual_seed(1)
    for who in (torch.arange(6), torch.tensor([1, 4]), torch.tensor([5])):
        x = torch.randn(len(who), p, generator=generator, dtype=torch.float64)
        values, gradients = problem.losses.value_and_gradient(x, who, None)
        for row, i in enumerate(who.tolist()):
            expected = by_autograd(problem, x[row], clients[i])
            assert torch.allclose(gradients[row], expected, atol=1e-12)
            exact = problem.loss(problem.trained(x[row])(clients[i][0]), clients[i][1]).detach()
            assert float(values[row]) == pytest.approx(float(exact), abs=1e-12)


@pytest.mark.parametrize("network", [False, True])
def test_minibatches_use_the_picked_samples(network: bool) -> None:
    clients = [samples(size, 9, 4, i) for i, size in enumerate([20, 20, 8])]
    model: nn.Module = nn.Linear(9, 4).double()
    if network:
        model = nn.Sequential(model, nn.Tanh(), nn.Linear(4, 4).double())
    problem = fedfw.Problem(model, nnf.cross_entropy, clients)
    picks = torch.tensor([[0, 5, 19], [3, 3, 7], [7, 0, 1]])
    x = torch.randn(3, len(problem.start), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, gradients = problem.losses.value_and_gradient(x, torch.arange(3), picks)
    for i, (inputs, targets) in enumerate(clients):
        expected = by_autograd(problem, x[i], (inputs[picks[i]], targets[picks[i]]))
        assert torch.allclose(gradients[i], expected, atol=1e-12)


def test_padding_wastes_at_most_a_fifth() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randn(200, generator=generator).mul(1.0).exp().mul(50).long().clamp(min=1)
    clients = [samples(int(size), 3, 2, 0) for size in sizes]
    stacks = stack_clients(clients, may_pad=True)
    held = sum(stack.inputs.shape[0] * stack.inputs.shape[1] for stack in stacks)
    assert held <= 1.25 * int(sizes.sum())
    assert len(stacks) < 40
    assert sorted(int(i) for stack in stacks for i in stack.who) == list(range(200))


def test_minibatch_training_repeats_from_its_seed() -> None:
    clients = [samples(40, 9, 4, i) for i in range(5)]
    problem = fedfw.Problem(nn.Linear(9, 4).double(), nnf.cross_entropy, clients, test=clients[0])
    algorithm = fedfw.FedFWSto(fedfw.L2Ball(2.0), penalty=0.01)
    runs = [fedfw.simulate(problem, algorithm, rounds=20, batch_size=8, seed=s).x for s in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_the_given_module_is_never_changed_and_the_start_is_made_feasible() -> None:
    model = nn.Linear(9, 4)
    before = copy.deepcopy(model.state_dict())
    problem = fedfw.Problem(model, nnf.cross_entropy, [samples(10, 9, 4, 0)])
    run = fedfw.simulate(problem, fedfw.FedFW(fedfw.L1Ball(0.5)), rounds=5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    trained = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    assert torch.equal(trained, run.x)
    assert fedfw.L1Ball(0.5).contains(run.x)
    assert run.x.dtype == torch.float32


def test_datasets_are_taken_as_they_are() -> None:
    class Items(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 10

        def __getitem__(self, j: int) -> tuple[torch.Tensor, int]:
            return samples(10, 9, 4, 0)[0][j], int(samples(10, 9, 4, 0)[1][j])

    plain = samples(10, 9, 4, 0)
    model = nn.Linear(9, 4).double()
    problems = [
        fedfw.Problem(model, nnf.cross_entropy, [data])
        for data in (plain, torch.utils.data.TensorDataset(*plain), Items())
    ]
    values = [problem.value_and_gradient(problem.start)[0] for problem in problems]
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize("kind", ["integers", "soft classes", "ignored class"])
def test_unusual_targets_mean_what_the_loss_says(kind: str) -> None:
    """The closed form is for plain targets; others go through the loss itself, in training as in testing."""
    inputs, labels = samples(12, 9, 4, 0)
    cases = {
        "integers": (nn.Linear(9, 4), nnf.mse_loss, nnf.one_hot(labels, 4)),
        "soft classes": (nn.Linear(9, 4), nnf.cross_entropy, torch.full((12, 4), 0.25, dtype=torch.float64)),
        "ignored class": (nn.Linear(9, 4), nn.CrossEntropyLoss(), labels.clone().masked_fill_(labels == 3, -100)),
    }
    model, loss, targets = cases[kind]
    problem = fedfw.Problem(model.double(), loss, [(inputs, targets)], test=(inputs, targets))
    value, _ = problem.value_and_gradient(problem.start)
    assert value == pytest.approx(problem.test(problem.start).loss)


def test_loss_modules_count_as_their_functions() -> None:
    problem = fedfw.Problem(nn.Linear(9, 4).double(), nn.CrossEntropyLoss(), [samples(10, 9, 4, 0)])
    assert isinstance(problem.losses, LinearLosses)
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert isinstance(fedfw.Problem(nn.Linear(9, 4).double(), smoothed, [samples(10, 9, 4, 0)]).losses, ModuleLosses)


def test_refusals() -> None:
    data = [samples(10, 9, 4, 0)]
    with pytest.raises(ValueError, match=r"BatchNorm.*GroupNorm"):
        fedfw.Problem(nn.Sequential(nn.Linear(9, 4), nn.BatchNorm1d(4)), nnf.cross_entropy, data)
    with pytest.raises(ValueError, match="at least one client"):
        fedfw.Problem(nn.Linear(9, 4), nnf.cross_entropy, [])
    with pytest.raises(ValueError, match="client 0: 10 inputs and 9 targets"):
        fedfw.Problem(nn.Linear(9, 4), nnf.cross_entropy, [(data[0][0], data[0][1][:9])])
    with pytest.raises(ValueError, match="expected 1 positive numbers"):
        fedfw.Problem(nn.Linear(9, 4), nnf.cross_entropy, data, weights=[-1.0])
    with pytest.raises(ValueError, match=r"do not fit client 0's data, inputs \(10, 9\)"):
        fedfw.Problem(nn.Linear(8, 4).double(), nnf.cross_entropy, data)
    with pytest.raises(ValueError, match="drops values at random"):
        fedfw.Problem(nn.Sequential(nn.Linear(9, 4), nn.Dropout(0.5)), nnf.cross_entropy, data)
    with pytest.raises(ValueError, match=r"torch\.bfloat16, expected all in float32"):
        fedfw.Problem(nn.Linear(9, 4).bfloat16(), nnf.cross_entropy, data)
    network = nn.Sequential(nn.Linear(9, 4), nn.Linear(4, 4)).double()
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    with pytest.warns(UserWarning, match="all parameters of this network are zero"):
        fedfw.Problem(network, nnf.cross_entropy, data)


@pytest.mark.parametrize(
    "constraint",
    [
        fedfw.NuclearBall(3.0),
        fedfw.Product({"weight": fedfw.NuclearBall(3.0), "bias": fedfw.LinfBall(0.5)}),
        fedfw.GroupBall(3.0, "columns"),
    ],
    ids=["nuclear", "product", "group"],
)
def test_matrix_sets_train_a_linear_layer(constraint: object) -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.outer(torch.randn(4, generator=generator), torch.randn(9, generator=generator)).double()
    clients = []
    for i in range(4):
        inputs, _ = samples(60, 9, 4, i)
        clients.append((inputs, (inputs @ truth.T).argmax(1)))
    problem = fedfw.Problem(nn.Linear(9, 4).double(), nnf.cross_entropy, clients, test=clients[0])
    run = fedfw.simulate(problem, fedfw.FedFWPlus(constraint, penalty="auto"), rounds=60)  # type: ignore[arg-type]
    assert run.history[-1].accuracy > 0.85
    assert run.history[-1].distance == 0.0
    assert run.lower_bound <= run.history[-1].loss


class _Shifts(nn.Module):
    """Writes over its inputs, and gives the same answers to the same inputs only once."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.last = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(inputs.mul_(self.factor).flatten(1))
        return scores


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)),
        nn.Sequential(nn.Flatten(), nn.LeakyReLU(2.0, inplace=True), nn.Linear(4, 3)),
        _Shifts(0.5),
        _Shifts(1.0),
    ],
)
def test_models_that_write_over_clients_data_are_refused(model: nn.Module, dtype: torch.dtype) -> None:
    data = torch.randn(12, 4, dtype=dtype), torch.arange(12) % 3
    before = data[0].clone()
    for per in ("sample", "client"):
        with pytest.raises(ValueError, match=r"the model writes over its inputs.*inplace=False"):
            fedfw.Problem(model.to(dtype), nn.functional.cross_entropy, [data], per=per)  # type: ignore[arg-type]
    assert torch.equal(data[0], before)


def test_layers_in_place_behind_the_first_are_fine() -> None:
    data = torch.randn(12, 4), torch.arange(12) % 3
    before = data[0].clone()
    models = [nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=inplace), nn.Linear(5, 3)) for inplace in (False, True)]
    models[1].load_state_dict(models[0].state_dict())
    plain, in_place = (fedfw.Problem(model, nn.functional.cross_entropy, [data]) for model in models)
    assert plain.value(plain.start) == in_place.value(in_place.start)
    assert torch.equal(data[0], before)
