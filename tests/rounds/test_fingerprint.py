"""What makes two runs the same: everything that changes the model, and nothing else."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.problems import MatrixCompletion
from fedfw.problems.digest import describe_problem, text_of
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.fingerprint import refuse_another_run
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import Quadratics

Q = Quadratics.on("l1")
D = Q.constraint


def stamp(algorithm: fedfw.Algorithm | None = None, problem: fedfw.Problem | None = None, **options: Any) -> str:
    algorithm = fedfw.FedFW(D, penalty=0.1) if algorithm is None else algorithm
    found = Simulation(Q.problem if problem is None else problem, algorithm, Options(**options)).fingerprint
    return repr({name: text for name, text in found.items() if name != "rounds"})


def test_fingerprints_tell_runs_apart_that_would_go_another_way() -> None:
    same = stamp()
    assert stamp() == same
    assert stamp(rounds=7, eval_every=3, tol=0.1, participation=1.0) == same  # how long, and what is looked at
    assert stamp(participation=8) == stamp(participation=[1.0] * 8) == same
    box, other_box = torch.full((2000,), 1.0), torch.full((2000,), 1.0)
    other_box[1000] = 2.0  # where a tensor's own text has dots
    wide = fedfw.Problem.from_losses([lambda x: x.square().sum()], torch.zeros(2000))
    others = [
        stamp(fedfw.FedFW(D, penalty=0.2)),
        stamp(fedfw.FedFW(D, penalty=0.1, momentum=0.5)),
        stamp(fedfw.FedFW(fedfw.L1Ball(2.0), penalty=0.1)),
        stamp(fedfw.FedFWPlus(D, penalty=0.1)),
        stamp(fedfw.FedFWAnchored(D, penalty=0.1, anchor_every=5)),
        stamp(fedfw.FedFWAnchored(D, penalty=0.1, anchor_every=6)),
        stamp(fedfw.FedAvg(D)),
        stamp(fedfw.FedAvg(D, mu=1.0)),
        stamp(problem=quadratic_problem(Q.A, Q.c, Q.start + 0.01)),
        stamp(problem=quadratic_problem(Q.A.float(), Q.c.float(), Q.start.float())),
        stamp(problem=quadratic_problem(Q.A, Q.c + 1e-12, Q.start)),
        stamp(problem=quadratic_problem(Q.A, Q.c, Q.start, weights=[1.0] * 7 + [2.0])),
        stamp(seed=1),
        stamp(local_steps=2),
        stamp(participation=3),
        stamp(participation=5),
        stamp(participation=0.5),
        stamp(participation=[0.5] * 7 + [0.6]),
        stamp(participation=lambda t: [t % 8]),
        stamp(participation=lambda t: [t % 7]),
        stamp(relax={0: fedfw.L2Ball(1.0)}),
        stamp(relax={1: fedfw.L2Ball(1.0)}),
        stamp(relax={1: fedfw.L2Ball(2.0)}),
        stamp(fedfw.FedFW(fedfw.Box(-box, box), penalty=0.1), wide),
        stamp(fedfw.FedFW(fedfw.Box(-box, other_box), penalty=0.1), wide),
    ]
    assert len({same, *others}) == 1 + len(others)
    assert stamp(fedfw.FedFW(D, penalty=0.1, momentum="auto")) == same  # what it stands for here


def linear(*, change: str = "", sizes: tuple[int, ...] = (9, 7, 9)) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(m, 4, generator=generator), torch.arange(m) % 3) for m in sizes]
    test = torch.randn(5, 4, generator=generator), torch.arange(5) % 3
    model, loss, options = nn.Linear(4, 3), nnf.cross_entropy, {}
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    match change:
        case "one entry":
            clients[1][0][3, 2] += 1e-6
        case "one label":
            clients[2][1][4] = 2
        case "two samples swapped":
            clients[0] = tuple(t[[1, 0, *range(2, 9)]] for t in clients[0])
        case "two clients swapped":
            clients[0], clients[2] = clients[2], clients[0]
        case "test":
            test[1][0] = 1
        case "l2":
            options = {"l2": 0.001}
        case "more l2":
            options = {"l2": 0.002}
        case "weights":
            options = {"weights": [1.0, 1.0, 2.0]}
        case "smoothed":
            loss = partial(nnf.cross_entropy, label_smoothing=0.1)
        case "class weights":
            loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
        case "other class weights":
            loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0]))
    return fedfw.Problem(model, loss, clients, test=test, **options)


def test_problems_are_told_apart_by_data_loss_weights_and_l2() -> None:
    changes = ["", "one entry", "one label", "two samples swapped", "two clients swapped", "test", "l2", "more l2"]
    changes += ["weights", "smoothed", "class weights", "other class weights"]
    found = [describe_problem(linear(change=change)) for change in changes]
    assert describe_problem(linear()) == found[0]
    assert len(set(map(repr, found))) == len(found)
    for change, name in {"one entry": "data", "one label": "data", "test": "test data", "l2": "l2"}.items():
        other = found[changes.index(change)]
        assert [key for key in other if other[key] != found[0][key]] == [name]


def test_other_kinds_of_problems() -> None:
    def module(activation: nn.Module, frozen: float = 0.0) -> fedfw.Problem:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), activation, nn.Linear(4, 3), nn.Linear(3, 3))
        net[3].requires_grad_(False)
        nn.init.constant_(net[3].weight, frozen)
        return fedfw.Problem(net, nnf.cross_entropy, [(torch.ones(5, 4), torch.arange(5) % 3)])

    def completion(value: float) -> fedfw.Problem:
        pairs = torch.tensor([[0, 0], [1, 2]])
        return fedfw.Problem(MatrixCompletion(2, 3), nnf.mse_loss, [(pairs, torch.tensor([1.0, value]))])

    def generated(value: float) -> fedfw.Problem:
        def make(who: Tensor) -> tuple[Tensor, Tensor]:
            return torch.full((len(who), 2, 4), value), torch.zeros(len(who), 2, dtype=torch.int64)

        model = nn.Linear(4, 3)
        nn.init.zeros_(model.weight)
        return fedfw.Problem.generated(model, nnf.cross_entropy, 50, make)

    def functions(n: int) -> fedfw.Problem:
        return fedfw.Problem.from_losses([lambda x: x.square().sum()] * n, torch.zeros(3))

    problems = [module(nn.Tanh()), module(nn.ReLU()), module(nn.Tanh(), 1.0), completion(1.0), completion(2.0)]
    problems += [generated(1.0), generated(2.0), functions(2), functions(3)]
    assert len({repr(describe_problem(problem)) for problem in problems}) == len(problems)
    assert describe_problem(completion(1.0)) == describe_problem(completion(1.0))
    assert describe_problem(generated(1.0)) == describe_problem(generated(1.0))


def test_texts_do_not_depend_on_the_process() -> None:
    class Constant:
        def __call__(self, t: int) -> float:
            return 1.0

    assert "0x" not in text_of([Constant(), lambda t: t, partial(nnf.cross_entropy, weight=torch.ones(20))])


def test_a_refusal_says_what_differs_and_why(tmp_path: Any) -> None:
    kept = {"participation": "3", "l2": "0.001", "schedule": "[1]", "rounds": "10"}
    refuse_another_run(tmp_path, kept, kept | {"rounds": "20"}, 10)
    with pytest.raises(ValueError, match=r"holds another run: participation was 3, is 5; l2 was 0.001, is 0.002$"):
        refuse_another_run(tmp_path, kept, kept | {"participation": "5", "l2": "0.002"}, 10)
    with pytest.raises(ValueError, match=r"schedule was .* \(the schedule goes by the number of rounds"):
        refuse_another_run(tmp_path, kept, kept | {"rounds": "20", "schedule": "[2]"}, 10)
    with pytest.raises(ValueError, match=r"rounds=9, expected at least 10: .* has done so many"):
        refuse_another_run(tmp_path, kept, kept | {"rounds": "9"}, 10)
    with pytest.raises(ValueError, match=r"momentum was not there, is 0.9"):
        refuse_another_run(tmp_path, kept, kept | {"momentum": "0.9"}, 10)
