"""Certified accuracy in records, simulated and deployed, and what is refused before a run begins."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedfw
from fedfw.deployment import DeployedServer, Task
from fedfw.lipschitz import MaxMin
from fedfw.rounds.options import Options
from fedfw.rounds.records import History, Record


def samples(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes, each around a corner of its own."""
    targets = torch.arange(12) % 3
    noise = torch.randn(12, 4, generator=torch.Generator().manual_seed(seed))
    return (torch.eye(4)[targets] + 0.1 * noise).to(dtype), targets


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), MaxMin(), nn.Linear(8, 3)).to(dtype)


ALGORITHM = fedfw.FedFW(fedfw.LipschitzNet(2.0), penalty=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_record_has_the_constant_and_the_shares_of_the_model_after_the_round(dtype: torch.dtype) -> None:
    data = [samples(i, dtype) for i in range(3)]
    problem = fedfw.Problem(network(dtype), nn.functional.cross_entropy, data, test=samples(9, dtype))
    run = fedfw.simulate(problem, ALGORITHM, rounds=30, certify="0.05,0.3", eval_every=5)
    assert [record.certified is not None for record in run.history] == [t % 5 == 0 for t in range(1, 31)]
    last = run.history[-1]
    assert last.lipschitz == fedfw.lipschitz_bound(run.model)
    assert last.lipschitz <= 2.0
    shares = fedfw.certified_accuracy(run.model, samples(9, dtype), [0.05, 0.3])
    assert last.certified == {"0.05": shares[0.05], "0.3": shares[0.3]}
    assert last.accuracy is not None
    assert last.accuracy >= shares[0.05] >= shares[0.3]
    assert shares[0.05] > 0.5


def test_runs_that_do_not_ask_have_none() -> None:
    problem = fedfw.Problem(network(), nn.functional.cross_entropy, [samples(0)], test=samples(9))
    record = fedfw.simulate(problem, ALGORITHM, rounds=1).history[-1]
    assert (record.lipschitz, record.certified) == (None, None)


def test_a_deployed_server_records_the_same() -> None:
    task = Task(
        network(),
        nn.functional.cross_entropy,
        ALGORITHM,
        samples,
        3,
        options=Options(rounds=2, certify=[0.05]),
        test=samples(9),
    )
    server = DeployedServer(task)
    server.open({0, 1, 2})
    record = server.close()
    assert record.lipschitz == fedfw.lipschitz_bound(task.problem(task.test).trained(server.xbar))
    assert record.certified == {"0.05": fedfw.certified_accuracy(server.model, samples(9), [0.05])[0.05]}


def test_columns_and_lines(tmp_path: Path) -> None:
    history = History([Record(round=1), Record(round=2, lipschitz=1.5, certified={"0.1": 0.9, "0.5": 0.25})])
    assert list(History.from_jsonl(history.to_jsonl())) == list(history)
    history.to_csv(tmp_path / "h.csv")
    with open(tmp_path / "h.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["certified_0.5"] for row in rows] == ["", "0.25"]
    assert [row["lipschitz"] for row in rows] == ["", "1.5"]


@pytest.mark.parametrize(
    ("given", "radii"),
    [
        (None, ()),
        ("0.1,0.25,1", (0.1, 0.25, 1.0)),
        (0.5, (0.5,)),
        (1, (1.0,)),
        ([0.1, 1], (0.1, 1.0)),
        ((2.0,), (2.0,)),
    ],
)
def test_radii_are_numbers_or_text(given: Any, radii: tuple[float, ...]) -> None:
    assert Options(certify=given).radii == radii


@pytest.mark.parametrize("bad", ["0.1;0.2", "", "0.1,,0.2", "-1", "nan", "inf", 0.0, -0.5, [0.1, 0.0], [], ["a"]])
def test_other_radii_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"certify=.*, expected positive numbers, or text such as"):
        Options(certify=bad)


@pytest.mark.parametrize(
    ("model", "test", "told"),
    [
        (network(), None, "certify=0.1 needs test data, and there are none"),
        (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), samples(9), r"certify=0.1: layer 1 \(LayerNorm\)"),
    ],
)
def test_what_cannot_be_certified_is_refused_before_the_run(model: nn.Module, test: Any, told: str) -> None:
    problem = fedfw.Problem(model, nn.functional.cross_entropy, [samples(0)], test=test)
    algorithm = fedfw.FedFW(fedfw.L2Ball(1.0))
    with pytest.raises(ValueError, match=told):
        fedfw.simulate(problem, algorithm, rounds=1, certify=0.1)
    task = Task(model, problem.loss, algorithm, samples, 1, options=Options(certify=0.1), test=test)
    with pytest.raises(ValueError, match=told):
        DeployedServer(task)


def test_numbers_are_not_classes() -> None:
    data = torch.ones(5, 4), torch.ones(5, 1)
    problem = fedfw.Problem(nn.Linear(4, 1), nn.functional.mse_loss, [data], test=data)
    with pytest.raises(ValueError, match=r"certify=0.1: targets are torch.float32 of shape \(2, 1\)"):
        fedfw.simulate(problem, fedfw.FedFW(fedfw.L2Ball(1.0)), rounds=1, certify=0.1)
