"""Ready problems by the names of their parts."""

import pytest
import torch

import fedfw
from fedfw.config import RunConfig, completed
from fedfw.data import Data, Part, load_data
from fedfw.data.shakespeare import cut_windows
from fedfw.models import usual_model
from fedfw.presets import (
    ProblemOptions,
    load_problem,
    make_problem,
    usual_partition,
)


def data(
    classes: int | None = 5, sides: tuple[int, int] | None = None, **owners: torch.Tensor
) -> Data:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=generator)
    targets = inputs[:, 0] if classes is None else torch.arange(60) % classes
    if sides is not None:
        inputs = torch.stack([torch.arange(60) % sides[0], torch.arange(60) % sides[1]], 1)
    part = Part(inputs, targets, owners)
    test = part if sides else Part(inputs + 100, targets, owners)
    return Data("made up", part, test, classes, sides)


def text(*sizes: int, context: int = 12) -> Data:
    drawn = (
        torch.randint(5, (size,), generator=torch.Generator().manual_seed(size)) for size in sizes
    )
    return Data("made up", *cut_windows([each.to(torch.int8) for each in drawn], context), 5)


def same(one: fedfw.Problem, other: fedfw.Problem) -> bool:
    x = torch.randn(
        one.start.shape, generator=torch.Generator().manual_seed(0), dtype=one.start.dtype
    )
    everyone = torch.arange(one.n)
    if one.n != other.n or not torch.equal(one.start, other.start):
        return False
    values = (problem.losses.value(x.expand(problem.n, -1), everyone) for problem in (one, other))
    return torch.allclose(*values) and torch.equal(one.weights, other.weights)


def test_a_problem_by_its_names_is_the_problem_of_its_options() -> None:
    by_name = load_problem(
        "digits", "mclr", clients=6, partition="labels:5", l2=0.1, weights="samples", seed=3
    )
    options = ProblemOptions(
        clients=6, model="mclr", partition="labels:5", l2=0.1, weights="samples"
    )
    assert same(by_name, make_problem(load_data("digits"), options, seed=3))
    assert not same(by_name, make_problem(load_data("digits"), options, seed=4))
    assert fedfw.load_problem is load_problem


@pytest.mark.parametrize(
    ("made", "model", "rule"),
    [
        (data(5), "mclr", "labels:3"),
        (data(3), "mclr", "iid"),
        (data(2), "logistic", "iid"),
        (data(None), "linear", "iid"),
        (data(None, (6, 5), user=torch.arange(60) % 6), "completion", "user"),
        (data(5, None, client=torch.arange(60) % 6), "mclr", "client"),
        (data(5, None, writer=torch.arange(60) % 6), "mclr", "labels:3"),
        (text(300, 200, 400, 260), "transformer", "speaker"),
    ],
)
def test_models_and_partitions_by_the_data(made: Data, model: str, rule: str) -> None:
    assert usual_model(made) == model
    assert usual_partition(made, 3) == rule
    small = {"width": 4, "depth": 1, "heads": 1} if model == "transformer" else {}
    problem = make_problem(made, ProblemOptions(clients=3, **small))
    named = ProblemOptions(clients=3, model=model, partition=rule, **small)
    assert same(problem, make_problem(made, named))


def test_natural_owners_are_all_clients_where_no_number_is_given() -> None:
    owned = data(5, None, region=torch.arange(60) % 6, writer=torch.arange(60) % 15)
    assert make_problem(owned, ProblemOptions()).n == 6
    assert make_problem(owned, ProblemOptions(partition="writer")).n == 15
    assert make_problem(owned, ProblemOptions(partition="writer", clients=4)).n == 4
    assert make_problem(data(5), ProblemOptions()).n == 10
    completed_config = completed(RunConfig.of(partition="writer"), owned)
    assert completed_config.clients == 15


def test_clients_count_by_samples_from_python_too() -> None:
    clients = [(torch.randn(m, 4), torch.randint(3, (m,))) for m in (30, 20, 50)]
    loss = torch.nn.functional.cross_entropy
    problem = fedfw.Problem(torch.nn.Linear(4, 3), loss, clients, weights="samples")
    assert problem.weights.tolist() == [0.3, 0.2, 0.5]
    with pytest.raises(ValueError, match="weights='size', expected 'equal', 'samples' or 3 pos"):
        fedfw.Problem(torch.nn.Linear(4, 3), loss, clients, weights="size")


@pytest.mark.parametrize("name", ["fedfw+", "FedFW+", "fedfwplus", "fedfw-plus", "FedFWPlus"])
def test_spellings_of_an_algorithm_are_one(name: str) -> None:
    assert fedfw.ALGORITHMS[name] is fedfw.FedFWPlus
    assert completed(RunConfig.of(algorithm=name), data(5)).algorithm == "fedfw+"
    assert "fedfw-minus" not in fedfw.ALGORITHMS


def test_lent_samples_take_the_place_of_the_test_data() -> None:
    made = data(5)
    whole, lending = (
        make_problem(made, ProblemOptions(clients=3, partition="iid"), held_out=h)
        for h in (0.0, 0.25)
    )
    assert whole.losses.sizes.tolist() == [20, 20, 20]
    assert lending.losses.sizes.tolist() == [15, 15, 15]
    assert len(lending.test_data[0]) == 15
    held = torch.cat(
        [
            lending.test_data[0].flatten(1),
            *(stack.inputs.flatten(0, 1) for stack in lending.losses._stacks),
        ]
    )
    assert sorted(held[:, 0].tolist()) == sorted(
        made.train.inputs[:, 0].tolist()
    )  # nothing is lost or used twice
    with pytest.raises(ValueError, match="too few samples to lend some"):
        make_problem(made, ProblemOptions(clients=60, partition="iid"), held_out=0.5)


@pytest.mark.parametrize("clients", range(1, 12))
def test_the_usual_split_leaves_no_label_without_a_client(clients: int) -> None:
    made = data(9)
    parts = fedfw.partition(usual_partition(made, clients), made, clients)
    assert torch.cat(parts).sort().values.tolist() == list(range(len(made.train)))
    assert (usual_partition(made, clients) == "labels:3") == (clients >= 7)
