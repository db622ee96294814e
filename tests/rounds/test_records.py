"""Records and histories: columns, files, and back."""

import csv
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedfw
from fedfw.deployment import DeployedServer, Task
from fedfw.lipschitz import MaxMin
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Attendance, Participation
from fedfw.rounds.records import History, Record
from fedfw.rounds.setup import (
    Certificate,
    feasible_start,
    usable_device,
)
from fedfw.simulation import Simulation
from fedfw_reproduction.known_quadratics import SETS, P, Quadratics

numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**60)
records = st.builds(
    Record,
    round=st.integers(1, 10**6),
    loss=numbers,
    gap=numbers,
    lower_bound=numbers,
    participants=counts,
    bytes_up=counts,
    evidence_up=counts,
    evidence_down=counts,
    seconds=st.none()
    | st.dictionaries(st.sampled_from(["gradient", "oracle", "rest"]), st.floats(0, 1e6)),
)


@given(st.lists(records, max_size=6))
def test_a_history_survives_its_lines(listed: list[Record]) -> None:
    history = History(listed)
    again = History.from_jsonl(history.to_jsonl())
    assert list(again) == listed
    assert again.to_jsonl() == history.to_jsonl()
    assert again.to_dict() == {f.name: [getattr(r, f.name) for r in listed] for f in fields(Record)}


def test_history_as_columns_and_csv(tmp_path: Path) -> None:
    run = fedfw.simulate(Quadratics.on("l1").problem, fedfw.FedFW("l1:1"), rounds=5, eval_every=2)
    columns = run.history.to_dict()
    assert columns["round"] == [1, 2, 3, 4, 5]
    assert [value is None for value in columns["loss"]] == [True, False, True, False, False]
    run.history.to_csv(tmp_path / "h.csv")
    with open(tmp_path / "h.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    assert {"seconds_gradient", "seconds_oracle", "seconds_rest"} <= set(rows[0])
    assert [row["bytes_up"] for row in rows] == [str(value) for value in columns["bytes_up"]]
    assert [float(row["loss"]) for row in rows if row["loss"]] == [
        v for v in columns["loss"] if v is not None
    ]
    assert len(run.plot().axes) == 4


# --- Who takes part: as often as was asked for, the same clients every time, and nothing that makes
# no sense ---


def test_rates() -> None:
    chances = [0.1, 0.5, 0.9]
    attends = Participation(chances, 3, seed=1)
    counts = torch.zeros(3)
    for t in range(1, 2001):
        counts[attends(t)] += 1
    assert torch.allclose(counts / 2000, torch.tensor(chances), atol=0.04)
    assert attends.p == 0.1
    assert attends.expected == pytest.approx(1.5)
    assert not attends.is_full
    assert Participation(1, 3, seed=1).is_full  # all of them, not one of three


@given(
    n=st.integers(2, 30),
    seed=st.integers(0, 2**62),
    t=st.integers(1, 10**9),
    wanted=st.one_of(st.floats(0.01, 1.0), st.integers(2, 30), st.just("each its own")),
)
def test_draws_repeat_and_name_clients_in_order(
    n: int, seed: int, t: int, wanted: float | int | str
) -> None:
    if isinstance(wanted, int):
        wanted = min(wanted, n)
    asked = [(i + 1) / n for i in range(n)] if isinstance(wanted, str) else wanted
    who = Participation(asked, n, seed)(t)
    assert torch.equal(who, Participation(asked, n, seed)(t))
    assert who.dtype == torch.int64
    assert who.tolist() == sorted(set(who.tolist()))
    assert all(0 <= i < n for i in who.tolist())
    if isinstance(wanted, int):
        assert len(who) == wanted
    if isinstance(wanted, str):
        assert n - 1 in who  # its probability is one


@pytest.mark.parametrize(
    "wanted", [0.0, 1.5, -0.1, float("nan"), 11, 0, -3, [0.5, 0.5], [0.5] * 9 + [0.0], []]
)
def test_refusals(wanted: object) -> None:
    with pytest.raises(ValueError, match="participation="):
        Participation(wanted, 10, seed=0)  # type: ignore[arg-type]


def test_a_function_is_asked_once_a_round_and_held_to_the_clients_that_there_are() -> None:
    asked: list[int] = []

    def function(t: int) -> list[int]:
        asked.append(t)
        return [0, 4] if t < 3 else []

    attends = Participation(function, 4, seed=0)
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"round 1: participation names clients \[0, 4\], expected 0 to 3"
        ):
            attends(1)
    asked.clear()
    assert [attends(3).tolist() for _ in range(3)] == [[], [], []]
    assert asked == [3]


@pytest.mark.parametrize(
    ("function", "p"),
    [
        (lambda t: [0] if t % 5 else [0, 1], 0.2),
        (lambda t: [t % 4], 0.25),
        (lambda t: [0, 1, 2, 3], 1.0),
        (lambda t: [2], 1.0),  # three clients never come
        (lambda t: [], 1.0),
    ],
)
def test_the_p_of_a_function_is_the_least_share_of_rounds(function: Attendance, p: float) -> None:
    attends = Participation(function, 4, seed=0, rounds=20)
    assert attends.p == pytest.approx(p)
    counts = torch.zeros(4, dtype=torch.int64)
    for t in range(1, 21):
        counts[attends(t)] += 1
    assert torch.equal(attends.attended(20), counts)


# --- What is worked out before the first round: device, start and certificate ---


@pytest.mark.parametrize("wanted", ["tpu", "meta", "cpu:x", ""])
def test_devices_that_there_are_not(wanted: str) -> None:
    with pytest.raises(ValueError, match=f"device={wanted!r}, expected cpu or cuda"):
        usable_device(wanted)
    assert usable_device("cpu") == usable_device(torch.device("cpu")) == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device='cuda': there is no CUDA device here"):
            usable_device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SETS)
def test_a_start_outside_is_projected_and_one_inside_is_kept(name: str, dtype: torch.dtype) -> None:
    D = SETS[name]
    far = 5 * torch.randn(P, generator=torch.Generator().manual_seed(0), dtype=dtype)
    with pytest.warns(UserWarning, match="so the run begins at the nearest point") as told:
        start = feasible_start(D, far)
    assert f"moved by {float((start - far).double().norm()):.3g}" in str(told[0].message)
    assert D.contains(start)
    assert torch.allclose(start, D.project(far))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert feasible_start(D, start) is start


# --- the certificate ---


def test_a_private_run_proves_nothing() -> None:
    pytest.importorskip("dp_accounting")
    data = [samples_of_robustness(i) for i in range(3)]
    problem = fedfw.Problem(nn.Linear(4, 3), nnf.cross_entropy, data)
    options = Options(privacy="eps=1,delta=1e-5,noise=30")
    plain = fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1)
    assert Simulation(problem, plain, options).certificate is Certificate.PRIVATE


def test_certificate_says_when_it_is_not_valid() -> None:
    unknown = fedfw.Problem.from_losses([lambda x: x.sin().sum()], torch.zeros(3))
    run = fedfw.simulate(unknown, fedfw.FedFW(fedfw.L1Ball(1.0)), rounds=3)
    assert run.lower_bound is None
    assert run.certificate.startswith("none, because the losses are not known to be convex")
    with pytest.raises(ValueError, match="tol needs a certificate"):
        fedfw.simulate(unknown, fedfw.FedFW(fedfw.L1Ball(1.0)), rounds=3, tol=0.1)
    averaged = fedfw.simulate(
        Quadratics.on("l1").problem,
        fedfw.FedFW("l1:1", momentum=0.9),
        rounds=20,
        eval_every=10,
    )
    assert averaged.history[5].lower_bound is None
    assert averaged.history[9].lower_bound is not None
    assert "with momentum, the bound is loss - gap at evaluations" in averaged.certificate


# --- Certified accuracy in records, simulated and deployed, and what is refused before a run begins
# ---


def samples_of_robustness(
    seed: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes, each around a corner of its own."""
    targets = torch.arange(12) % 3
    noise = torch.randn(12, 4, generator=torch.Generator().manual_seed(seed))
    return (torch.eye(4)[targets] + 0.1 * noise).to(dtype), targets


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), MaxMin(), nn.Linear(8, 3)).to(dtype)


ALGORITHM = fedfw.FedFW(fedfw.LipschitzNet(2.0), penalty=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_record_has_the_constant_and_the_shares_of_the_model_after_the_round(
    dtype: torch.dtype,
) -> None:
    data = [samples_of_robustness(i, dtype) for i in range(3)]
    problem = fedfw.Problem(
        network(dtype), nnf.cross_entropy, data, test=samples_of_robustness(9, dtype)
    )
    run = fedfw.simulate(problem, ALGORITHM, rounds=30, certify="0.05,0.3", eval_every=5)
    assert [record.certified is not None for record in run.history] == [
        t % 5 == 0 for t in range(1, 31)
    ]
    last = run.history[-1]
    assert last.lipschitz == fedfw.lipschitz_bound(run.model)
    assert last.lipschitz <= 2.0
    shares = fedfw.certified_accuracy(run.model, samples_of_robustness(9, dtype), [0.05, 0.3])
    assert last.certified == {"0.05": shares[0.05], "0.3": shares[0.3]}
    assert last.accuracy >= shares[0.05] >= shares[0.3]
    assert shares[0.05] > 0.5


@pytest.mark.parametrize(
    ("model", "test", "told"),
    [
        (network(), None, "certify=0.1 needs test data, and there are none"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)),
            samples_of_robustness(9),
            r"certify=0.1: layer 1 \(LayerNorm\)",
        ),
    ],
)
def test_what_cannot_be_certified_is_refused_before_the_run(
    model: nn.Module, test: Any, told: str
) -> None:
    problem = fedfw.Problem(model, nnf.cross_entropy, [samples_of_robustness(0)], test=test)
    algorithm = fedfw.FedFW(fedfw.L2Ball(1.0))
    with pytest.raises(ValueError, match=told):
        fedfw.simulate(problem, algorithm, rounds=1, certify=0.1)
    task = Task(
        model,
        problem.loss,
        algorithm,
        samples_of_robustness,
        1,
        options=Options(certify=0.1),
        test=test,
    )
    with pytest.raises(ValueError, match=told):
        DeployedServer(task)
