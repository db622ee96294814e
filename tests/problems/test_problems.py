"""Gradients of every back end against autograd, one client at a time."""

import copy

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import fedfw
from fedfw.problems.base import WeightedGradient
from fedfw.problems.linear import LinearLosses
from fedfw.problems.modules import ModuleLosses
from fedfw.problems.oracles import Cohort, PlainOracles


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
    x = torch.randn(
        3, len(problem.start), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    _, gradients = problem.losses.value_and_gradient(x, torch.arange(3), picks)
    for i, (inputs, targets) in enumerate(clients):
        expected = by_autograd(problem, x[i], (inputs[picks[i]], targets[picks[i]]))
        assert torch.allclose(gradients[i], expected, atol=1e-12)


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
def test_models_that_write_over_clients_data_are_refused(
    model: nn.Module, dtype: torch.dtype
) -> None:
    data = torch.randn(12, 4, dtype=dtype), torch.arange(12) % 3
    before = data[0].clone()
    for per in ("sample", "client"):
        with pytest.raises(ValueError, match=r"the model writes over its inputs.*inplace=False"):
            fedfw.Problem(model.to(dtype), nn.functional.cross_entropy, [data], per=per)  # type: ignore[arg-type]
    assert torch.equal(data[0], before)


def test_layers_in_place_behind_the_first_are_fine() -> None:
    data = torch.randn(12, 4), torch.arange(12) % 3
    before = data[0].clone()
    models = [
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=inplace), nn.Linear(5, 3))
        for inplace in (False, True)
    ]
    models[1].load_state_dict(models[0].state_dict())
    plain, in_place = (
        fedfw.Problem(model, nn.functional.cross_entropy, [data]) for model in models
    )
    assert plain.value(plain.start) == in_place.value(in_place.start)
    assert torch.equal(data[0], before)


# --- What a stack of clients computes in a round: weighted gradients, on samples drawn by the
# clients' numbers ---

BALL = fedfw.L1Ball(1.0)


def problem(dtype: torch.dtype = torch.float64) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(size, 5, generator=generator),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for size in (12, 20, 7, 12)
    ]
    torch.manual_seed(0)
    return fedfw.Problem(
        nn.Linear(5, 3).to(dtype), nnf.cross_entropy, clients, weights=[1, 2, 3, 4]
    )


def cohort(p: fedfw.Problem, rows: list[int]) -> Cohort:
    who = torch.tensor(rows)
    return Cohort(who, p.weights.to(p.start.dtype)[who], who, BALL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_weighted_and_weights_are_those_of_the_stack(dtype: torch.dtype) -> None:
    p = problem(dtype)
    x = torch.randn(4, 18, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
        dtype
    )
    values, gradients = p.losses.value_and_gradient(x, torch.arange(4), None)
    for rows in ([0, 1, 2, 3], [2, 0], [3]):
        weights = p.weights.to(dtype)[rows]
        loss, a = WeightedGradient(p.losses, weights, torch.tensor(rows), lambda: None, 1)(x[rows])
        assert torch.allclose(loss, weights * values[rows])
        assert torch.allclose(a, weights[:, None] * gradients[rows])
        assert a.dtype == dtype


def test_a_client_alone_draws_the_samples_that_it_draws_in_a_stack() -> None:
    """A deployed client has row 0 among its own losses, and draws by its number."""
    p = problem()
    sizes = p.losses.sizes
    oracles = PlainOracles(p.losses, 2, 3, 5, sizes)
    x = torch.randn(4, 18, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together, _ = oracles.pair(cohort(p, [0, 1, 2, 3]), 6, None)
    steps = [together(x)[1] for _ in range(2)]
    assert not torch.equal(steps[0], steps[1])  # a draw for every local step
    for i in range(4):
        one = Cohort(torch.tensor([i]), p.weights[i : i + 1], torch.tensor([i]), BALL)
        alone, _ = oracles.pair(one, 6, None)
        for step in steps:
            assert torch.allclose(alone(x[i : i + 1])[1][0], step[i], atol=1e-12)
    full = together(x, full=True)[1]
    exact, _ = PlainOracles(p.losses, 1, None, 0, sizes).pair(cohort(p, [0, 1, 2, 3]), 1, None)
    assert torch.allclose(full, exact(x)[1])
