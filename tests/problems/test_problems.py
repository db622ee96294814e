"""Gradients of every back end against autograd, one client at a time."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import fedfw
from fedfw.problems.base import WeightedGradient


def samples(size: int, features: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(size, features, generator=generator, dtype=torch.float64),
        torch.randint(0, classes, (size,), generator=generator),
    )


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


DATA = [samples(10, 9, 4, 0)]
LAYER = nn.Linear(9, 4)


@pytest.mark.parametrize(
    ("model", "clients", "options", "message"),
    [
        (nn.Sequential(LAYER, nn.BatchNorm1d(4)), DATA, {}, r"BatchNorm.*GroupNorm"),
        (LAYER, [], {}, "at least one client"),
        (LAYER, [(DATA[0][0], DATA[0][1][:9])], {}, "client 0: 10 inputs and 9 targets"),
        (LAYER, DATA, {"weights": [-1.0]}, "expected 1 positive numbers"),
        (nn.Linear(8, 4).double(), DATA, {}, r"do not fit client 0's data, inputs \(10, 9\)"),
        (nn.Sequential(LAYER, nn.Dropout(0.5)), DATA, {}, "drops values at random"),
        (nn.Linear(9, 4).bfloat16(), DATA, {}, r"torch\.bfloat16, expected all in float32"),
    ],
)
def test_refusals(
    model: nn.Module, clients: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fedfw.Problem(model, nnf.cross_entropy, clients, **options)


def test_a_network_of_zeros_is_noted() -> None:
    network = nn.Sequential(nn.Linear(9, 4), nn.Linear(4, 4)).double()
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    with pytest.warns(UserWarning, match="all parameters of this network are zero"):
        fedfw.Problem(network, nnf.cross_entropy, DATA)


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
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    plain = fedfw.Problem(model, nnf.cross_entropy, [data])
    model[1].inplace = True
    in_place = fedfw.Problem(model, nnf.cross_entropy, [data])
    assert plain.value(plain.start) == in_place.value(in_place.start)
    assert torch.equal(data[0], before)


# --- What a stack of clients computes in a round: weighted gradients, on samples drawn by the
# clients' numbers ---


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
