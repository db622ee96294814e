"""Run folders: an interrupted run goes on to the same bits, whatever interrupted it and whatever was damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedfw
from fedfw.rounds.folders import RunFolder
from fedfw.rounds.records import History, Record
from fedfw.simulation import Simulation
from fedfw.studies.quadratics import Quadratics

pytestmark = pytest.mark.usefixtures("no_plots")


def algorithms(D: fedfw.ConstraintSet) -> dict[str, fedfw.Algorithm]:
    return {
        "fedfw+": fedfw.FedFWPlus(D, penalty=0.05, momentum=0.9),
        "fedfw, proving": fedfw.FedFW(D, penalty=0.05),
        "fedfw-sto": fedfw.FedFWSto(D, penalty=0.05),
        "fedfw-anchored": fedfw.FedFWAnchored(D, anchor_every=7),
        "frank-wolfe": fedfw.FrankWolfe(D, momentum=0.5),
        "fedavg": fedfw.FedAvg(D, mu=1.0),
        "feddr": fedfw.FedDR(D, eta=0.5),
        "fedadmm": fedfw.FedADMM(D, eta=0.2),
        "fedda": fedfw.FedDA(D),
    }


def interrupt(at: int) -> Any:
    """A callback that ends the process in round ``at``, as Ctrl-C does."""

    def stop(simulation: Simulation) -> None:
        if simulation.t == at:
            raise KeyboardInterrupt

    return stop


def names(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("name", algorithms(fedfw.L1Ball(1.0)))
def test_interrupted_and_resumed(name: str, participation: float, tmp_path: Path) -> None:
    q = Quadratics.on("l1")
    algorithm = algorithms(q.constraint)[name]
    options: dict[str, Any] = {"rounds": 24, "participation": participation, "seed": 5}
    whole = fedfw.simulate(q.problem, algorithm, **options)
    with pytest.raises(KeyboardInterrupt):
        fedfw.simulate(q.problem, algorithm, out=tmp_path, callbacks=interrupt(17), **options)
    assert names(tmp_path) == ["checkpoint-00000010.safetensors", "history.jsonl"]
    with pytest.raises(ValueError, match="already holds a run: give another folder, or resume it"):
        fedfw.simulate(q.problem, algorithm, out=tmp_path, **options)
    resumed = fedfw.simulate(q.problem, algorithm, out=tmp_path, resume=True, **options)
    assert torch.equal(whole.x, resumed.x)
    columns = [run.history.to_dict() for run in (whole, resumed)]
    for column in columns:
        column.pop("seconds")
    assert columns[0] == columns[1]
    assert resumed.dense_sums == whole.dense_sums
    assert History.from_jsonl((tmp_path / "history.jsonl").read_text()).to_dict() == resumed.history.to_dict()
    assert {"model.pt", "plots.png"} <= set(names(tmp_path))


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    q = Quadratics.on("l1")
    algorithm = algorithms(q.constraint)["fedfw+"]
    whole = fedfw.simulate(q.problem, algorithm, rounds=40, out=tmp_path)
    assert names(tmp_path, "checkpoint-*") == ["checkpoint-00000030.safetensors", "checkpoint-00000040.safetensors"]
    newest = tmp_path / "checkpoint-00000040.safetensors"
    data = newest.read_bytes()
    for spoilt in (data[:-5], data[:200] + b"x" + data[201:], b"", b"fedfw-checkpoint 2\n{"):
        newest.write_bytes(spoilt)
        with pytest.warns(UserWarning, match="going back to the one before it"):
            resumed = fedfw.simulate(q.problem, algorithm, rounds=40, out=tmp_path, resume=True)
        assert torch.equal(whole.x, resumed.x)
        assert len(resumed.history) == 40


def test_a_run_without_a_good_checkpoint_begins_anew(tmp_path: Path) -> None:
    q = Quadratics.on("l1")
    algorithm = algorithms(q.constraint)["fedfw+"]
    whole = fedfw.simulate(q.problem, algorithm, rounds=10, out=tmp_path)
    (tmp_path / "checkpoint-00000010.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="going back"):
        again = fedfw.simulate(q.problem, algorithm, rounds=10, out=tmp_path, resume=True)
    assert torch.equal(whole.x, again.x)


def test_another_run_is_not_continued(tmp_path: Path) -> None:
    q = Quadratics.on("l1")
    algorithm = fedfw.FedFW(q.constraint, penalty=0.1)
    fedfw.simulate(q.problem, algorithm, rounds=10, out=tmp_path)
    for other in (
        fedfw.FedFW(q.constraint, penalty=0.2),
        fedfw.FedFW(q.constraint, penalty=0.1, momentum=0.5),
        fedfw.FedFW(q.constraint, penalty=0.1, schedule="constant:0.1"),
        fedfw.FedFW(fedfw.L1Ball(2.0), penalty=0.1),
        fedfw.FedFWPlus(q.constraint, penalty=0.1),
    ):
        with pytest.raises(ValueError, match="holds another run"):
            fedfw.simulate(q.problem, other, rounds=20, out=tmp_path, resume=True)
    for options in ({"seed": 1}, {"local_steps": 2}):
        with pytest.raises(ValueError, match="holds another run"):
            fedfw.simulate(q.problem, algorithm, rounds=20, out=tmp_path, resume=True, **options)  # type: ignore[arg-type]
    longer = fedfw.simulate(q.problem, algorithm, rounds=20, out=tmp_path, resume=True)
    assert torch.equal(longer.x, fedfw.simulate(q.problem, algorithm, rounds=20).x)


def test_a_penalty_is_compared_as_the_number_it_stands_for(tmp_path: Path) -> None:
    q = Quadratics.on("l1")
    run = fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, penalty="theory:2"), rounds=10, out=tmp_path)
    same = fedfw.FedFW(q.constraint, penalty=run.plan.lam_0)
    assert len(fedfw.simulate(q.problem, same, rounds=12, out=tmp_path, resume=True).history) == 12


def test_relaxed_minibatch_local_steps_resume_to_the_same_bits(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator))
        for size in (9, 20, 14, 14)
    ]
    network = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    problem = fedfw.Problem(network, torch.nn.functional.cross_entropy, clients)
    algorithm = fedfw.FedFWPlus(fedfw.L1Ball(3.0), penalty=0.01, momentum=0.5)
    options: dict[str, Any] = {
        "rounds": 25,
        "participation": 3,
        "relax": {0: fedfw.L2Ball(3.0)},
        "local_steps": 2,
        "batch_size": 4,
    }
    whole = fedfw.simulate(problem, algorithm, **options)
    with pytest.raises(KeyboardInterrupt):
        fedfw.simulate(problem, algorithm, out=tmp_path, callbacks=interrupt(17), **options)
    resumed = fedfw.simulate(problem, algorithm, out=tmp_path, resume=True, **options)
    assert torch.equal(whole.x, resumed.x)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """A process that is killed -9 in the middle; resuming gives the bits of an undisturbed run."""
    base = [sys.executable, "-m", "fedfw"]
    flags = ["--rounds", "300", "--constraint", "l2:10", "--algorithm", "fedfw+", "--eval-every", "50"]
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # more threads than cores would wait for each other
    subprocess.run([*base, "run", *flags, "--out", whole], check=True, capture_output=True, env=alone)
    process = subprocess.Popen(
        [*base, "run", *flags, "--out", cut], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=alone
    )
    try:
        while not list(Path(cut).glob("checkpoint-*.safetensors")) and process.poll() is None:
            os.sched_yield()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (Path(cut) / "model.pt").exists()  # it was killed before it was done
    subprocess.run([*base, "resume", cut], check=True, capture_output=True, env=alone)
    models = [torch.load(Path(folder) / "model.pt", weights_only=True) for folder in (whole, cut)]
    for name in models[0]:
        assert torch.equal(models[0][name], models[1][name])


# --- the folder itself ---


def test_the_two_newest_checkpoints_are_kept_and_later_ones_give_way(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.newest_round() == 0
    assert folder.latest() is None
    for t in (10, 20, 30):
        folder.save(t, {"x": torch.full((2,), float(t))}, {"round": t}, History([Record(round=t)]))
    assert names(tmp_path, "checkpoint-*") == ["checkpoint-00000020.safetensors", "checkpoint-00000030.safetensors"]
    assert folder.newest_round() == 30
    # A run that went back before a damaged checkpoint replaces it.
    again = RunFolder(tmp_path, resume=True)
    again.save(25, {}, {"round": 25}, History())
    assert names(tmp_path, "checkpoint-*") == ["checkpoint-00000020.safetensors", "checkpoint-00000025.safetensors"]
    found = again.latest()
    assert found is not None
    assert found[1]["round"] == 25
    assert RunFolder(tmp_path, resume=True).path == tmp_path


@pytest.mark.parametrize(
    "name", ["history.jsonl", "model.pt", "checkpoint-00000001.safetensors", "checkpoint-00000001.bin"]
)
def test_a_folder_that_holds_a_run_is_not_written_to(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="already holds a run"):
        RunFolder(tmp_path)
    assert names(tmp_path) == [name]


def test_folders_are_made_when_something_is_written_and_missing_ones_are_not_resumed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()  # a run that is refused leaves nothing behind
    folder.save(1, {}, {}, History())
    assert (tmp_path / "a" / "b" / "history.jsonl").is_file()
    with pytest.raises(ValueError, match="is no run folder"):
        RunFolder(tmp_path / "c", resume=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "notes.txt").write_text("mine")
    RunFolder(tmp_path / "c")  # other files are nobody's business


def test_a_run_of_version_0_1_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-00000010.bin").write_bytes(b"fedfw-checkpoint 2 ...")
    with pytest.raises(ValueError, match=r"holds a run of fedfw 0\.1, .* run its config\.toml anew"):
        RunFolder(tmp_path, resume=True)
