"""What a simulation refuses before it begins, and which rows it keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Participation
from fedfw.simulation.refusals import few_take_part
from fedfw.testing.known_quadratics import Quadratics


def samples() -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(9, 4, generator=generator), torch.arange(9) % 3) for _ in range(3)]
    return fedfw.Problem(torch.nn.Linear(4, 3), nnf.cross_entropy, data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds=0, expected a whole number of at least 1"),
        ({"local_steps": 0}, "local_steps=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"tol": 0.0}, "tol=0.0, expected a number above 0"),
        ({"eval_every": -1}, "eval_every=-1"),
        ({"batch_size": 3}, "plain functions"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"participation": 9}, "participation=9 clients a round, expected 1 to 8"),
        ({"privacy": "eps=1,delta=1e-5"}, "privacy is for clients with samples"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    q = Quadratics.on("l1")
    with pytest.raises(ValueError, match=message):
        fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.1), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0.1}, "tol needs a certificate, which reveals the data"),
        ({"relax": {0: fedfw.L2Ball(5.0)}}, "relax does not go with privacy"),
    ],
)
def test_what_does_not_go_with_privacy(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fedfw.simulate(samples(), fedfw.FedFW(fedfw.L1Ball(1.0)), rounds=2, privacy="eps=1,delta=1e-5", **options)


def test_tolerances_need_convex_losses() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    problem = fedfw.Problem(network, nnf.cross_entropy, [(torch.randn(5, 4), torch.arange(5) % 3)])
    with pytest.raises(ValueError, match="the losses are not known to be convex"):
        fedfw.simulate(problem, fedfw.FedFW(fedfw.L1Ball(1.0)), rounds=2, tol=0.1)


def test_tolerances_need_a_loss_that_is_summed_over_all_clients() -> None:
    """Nobody works out F of generated clients, so such a run could never find that it is close enough."""

    def make(who: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(len(who), 2, 4), torch.zeros(len(who), 2, dtype=torch.int64)

    made = fedfw.Problem.generated(torch.nn.Linear(4, 3), nnf.cross_entropy, 50, make)
    with pytest.raises(ValueError, match=r"tol=0.1 needs the loss over all clients"):
        fedfw.simulate(made, fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1), rounds=3, participation=2, tol=0.1)


def test_a_set_without_a_projection_does_not_go_with_projected_methods() -> None:
    class OnlyAnOracle(fedfw.L1Ball):
        has_projection = property(lambda self: False)  # type: ignore[assignment]

    q = Quadratics.on("l1")
    names = [name for name, cls in fedfw.ALGORITHMS.items() if issubclass(cls, fedfw.ProjectedAlgorithm)]
    for name in names:
        with pytest.raises(ValueError, match=f"{name} projects, and"):
            fedfw.simulate(q.problem, fedfw.ALGORITHMS[name](OnlyAnOracle(1.0)), rounds=1)


@pytest.mark.parametrize(
    ("participation", "rounds", "few"),
    [
        (1.0, 1, False),
        (0.5, 1, False),  # half of them in one round: as many rows as all have
        (0.1, 4, True),
        (0.1, 5, False),
        (3, 16, True),
        (3, 17, False),
        (lambda t: [0], 1, False),  # nobody knows how many
    ],
)
def test_rows_are_kept_of_those_who_take_part_where_they_are_few(participation: Any, rounds: int, few: bool) -> None:
    n = 100
    problem = quadratic_problem(torch.eye(3).repeat(n, 1, 1), torch.zeros(n, 3), torch.zeros(3))
    attends = Participation(participation, n, 0)
    assert few_take_part(problem, attends, Options(rounds=rounds, participation=participation)) == few


def test_what_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfw.simulation.refusals.os.sysconf", lambda name: 10)  # a machine of a hundred bytes
    q = Quadratics.on("l1")
    with pytest.raises(ValueError, match=r"8 clients with 12 parameters each take about .* GB"):
        fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.1), rounds=1)


def test_numbers_that_contradict_the_problem() -> None:
    problem = samples()
    with pytest.raises(ValueError, match="local_steps=2: frank-wolfe takes one step a round"):
        fedfw.simulate(problem, fedfw.FrankWolfe(fedfw.L1Ball(1.0)), rounds=1, local_steps=2)
    assert len(fedfw.simulate(problem, fedfw.FedFW(fedfw.L1Ball(1.0)), rounds=1, batch_size=100).history) == 1
