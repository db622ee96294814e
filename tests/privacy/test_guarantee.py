"""The promise: read from text, and kept by runs, which reveal nothing else."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import fedfw
from fedfw import Privacy
from fedfw.cli import main
from fedfw.problems.digest import describe_problem, digest_of
from fedfw.rounds.checkpoints import load_checkpoint
from fedfw.rounds.fingerprint import refuse_another_run
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation

pytest.importorskip("dp_accounting")
DELTA = 1e-5


@pytest.mark.parametrize(
    "text", ["eps=4", "eps=0,delta=1e-5", "eps=4,delta=2", "eps=a,delta=1e-5", "eps=1,delta=1e-5,clipp=1", ""]
)
def test_what_is_no_promise_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Privacy.parse(text)
    assert Privacy.parse("eps=4,delta=1e-5,clip=2,not-private-seed=3") == Privacy(4, 1e-5, 2, not_private_seed=3)


# --- runs ---


def problem(samples: int = 40, seed: int = 0) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(seed)
    clients = [
        (torch.rand(samples, 6, generator=generator), torch.randint(0, 3, (samples,), generator=generator))
        for _ in range(3)
    ]
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0])


def test_records_tell_what_was_spent_and_nothing_of_the_data() -> None:
    run = fedfw.simulate(problem(), fedfw.FedFW(fedfw.L1Ball(3.0)), rounds=5, privacy=Privacy(2.0, DELTA))
    spent = [record.epsilon for record in run.history]
    assert all(a is not None and b is not None and a < b for a, b in itertools.pairwise(spent))
    assert 1.9 < spent[-1] <= 2.0  # type: ignore[operator]
    for record in run.history:
        assert (record.loss, record.gap, record.lower_bound, record.surrogate) == (None,) * 4
        assert record.accuracy is not None
    assert run.lower_bound is None
    assert "choice of vertices" in str(run.privacy)
    again = fedfw.simulate(problem(), fedfw.FedFW(fedfw.L1Ball(3.0)), rounds=5, privacy=Privacy(2.0, DELTA))
    assert not torch.equal(run.x, again.x)


def test_the_penalty_is_worked_out_without_data() -> None:
    privacy = Privacy(2.0, DELTA, not_private_seed=0)
    plans = [Simulation(problem(seed=s), fedfw.FedFW(fedfw.L1Ball(3.0)), Options(privacy=privacy)).plan for s in (0, 1)]
    assert plans[0].lam_0 == plans[1].lam_0 > 0


@pytest.mark.parametrize(
    ("algorithm", "mechanism"),
    [
        (fedfw.FedFWPlus, "auto"),
        (fedfw.FedFWPlus, "gaussian"),
        (fedfw.FedFWSto, "auto"),
        (fedfw.NaiveFW, "auto"),
        (fedfw.FrankWolfe, "auto"),
    ],
)
def test_much_data_and_a_large_budget_come_close_to_no_noise(algorithm: Any, mechanism: str) -> None:
    p = problem(4000)
    exact = fedfw.simulate(p, algorithm(fedfw.L2Ball(3.0), **_penalty(algorithm)), rounds=20, eval_every=20).x
    for constraint in (fedfw.L2Ball(3.0), fedfw.LinfBall(0.5)):
        promise = Privacy(20.0, DELTA, clip=10.0, mechanism=mechanism, not_private_seed=0)
        options = {"rounds": 20, "eval_every": 20, "privacy": promise}  # the account of a large budget takes its time
        run = fedfw.simulate(p, algorithm(constraint, **_penalty(algorithm)), **options)
        assert constraint.contains(run.x, 1e-4)
        if isinstance(constraint, fedfw.L2Ball):
            assert float((run.x - exact).norm()) < 0.3


# --- files ---


def run_into(folder: Path, given: fedfw.Problem, rounds: int, resume: bool = False, **changes: Any) -> Any:
    promise = Privacy(4.0, DELTA, noise=10.0, not_private_seed=0)
    algorithm = fedfw.FedFW(fedfw.L1Ball(3.0), penalty=0.01, momentum=0.9)

    def stop(simulation: Simulation) -> bool:
        return simulation.t == rounds

    return fedfw.simulate(
        given, algorithm, rounds=6, privacy=promise, out=folder, resume=resume, callbacks=stop, **changes
    )


def test_files_of_a_private_run_hold_no_digest_of_data(tmp_path: Path, no_plots: None) -> None:
    """Who reads a digest can test a guess of the data: a run folder showed whether one entry had changed."""
    given = problem()
    run_into(tmp_path / "run", given, 4)
    data = [[tensor] for tensor in given.losses.data()]
    digests = {digest_of(tensors) for tensors in (*data, given.test_data, given.losses.data())}
    digests.add(hashlib.sha256(" ".join(digest_of(tensors) for tensors in data).encode()).hexdigest()[:16])
    described = describe_problem(given)
    assert {described["data"], described["test data"]} <= digests
    files = [path for path in (tmp_path / "run").iterdir() if path.is_file()]
    assert len(files) > 4
    for path in files:
        for found in digests:
            assert found.encode() not in path.read_bytes(), path
    # The same with another entry: what a checkpoint says of its run does not change.
    other = problem()
    next(iter(other.losses.data()))[7, 2] += 1e-3
    run_into(tmp_path / "other", other, 4)
    said = [load_checkpoint(max((tmp_path / name).glob("checkpoint-*")))[1] for name in ("run", "other")]
    assert said[0]["fingerprint"] == said[1]["fingerprint"]
    assert "40" in said[0]["fingerprint"]["samples"]


def test_a_private_run_goes_on_with_as_many_samples_only(tmp_path: Path, no_plots: None) -> None:
    """Its averages remember gradients in which a sample had a share by that number."""
    whole = run_into(tmp_path / "whole", problem(), 6)
    run_into(tmp_path / "run", problem(), 3)
    with pytest.raises(ValueError, match=r"samples was \[40, 40, 40\], is \[400, 400, 400\]"):
        run_into(tmp_path / "run", problem(400), 6, resume=True)
    resumed = run_into(tmp_path / "run", problem(), 6, resume=True)
    assert torch.equal(resumed.x, whole.x)


def test_a_private_folder_of_an_older_version_is_refused(tmp_path: Path) -> None:
    promise = Privacy(4.0, DELTA, not_private_seed=0)
    simulation = Simulation(problem(), fedfw.FedFW(fedfw.L1Ball(3.0)), Options(privacy=promise))
    here = simulation.fingerprint
    kept = {**here, "data": "0123456789abcdef", "test data": "none"}
    with pytest.raises(ValueError, match=r"holds a private run of fedfw 0\.2"):
        refuse_another_run(tmp_path, kept, here, 0)
    with pytest.raises(ValueError, match="privacy was none, is eps"):
        refuse_another_run(tmp_path, kept | {"privacy": "none"}, here, 0)


def _penalty(algorithm: Any) -> dict[str, Any]:
    return {} if algorithm in (fedfw.NaiveFW, fedfw.FrankWolfe) else {"penalty": 0.01}


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ({"tol": 0.1}, fedfw.FedFW(fedfw.L1Ball(1.0))),
        ({"relax": {0: fedfw.L1Ball(2.0)}}, fedfw.FedFW(fedfw.L1Ball(1.0))),
        ({}, fedfw.FedFWAnchored(fedfw.L1Ball(1.0))),
        ({}, fedfw.FedAvg(fedfw.L1Ball(1.0))),  # its step size would come from the data
    ],
)
def test_what_would_tell_of_the_data_is_refused(options: dict[str, Any], algorithm: fedfw.Algorithm) -> None:
    with pytest.raises(ValueError):
        fedfw.simulate(problem(), algorithm, rounds=3, privacy=Privacy(1.0, DELTA), **options)


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_plots: None
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--privacy", "eps=4,delta=1e-5", "--rounds", "3", "--json"]) == 0
    told = capsys.readouterr()
    record = json.loads(told.out.splitlines()[-1])
    assert 3.9 < record["epsilon"] <= 4
    assert record["loss"] is None
    assert "epsilon spent" in told.out
    assert "epsilon" in told.err
