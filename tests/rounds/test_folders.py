"""Run folders: an interrupted run goes on to the same bits, whatever interrupted it and whatever was damaged."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import fedfw
from fedfw.cli.main import main
from fedfw.rounds.files import LOCK, write_atomically
from fedfw.rounds.folders import RunFolder
from fedfw.rounds.records import History, Record
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import Quadratics
from tests.processes import start_python

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
        "fedadmm": fedfw.contrib.FedADMM(D, eta=0.2),
        "fedda": fedfw.FedDA(D),
    }


def interrupt(at: int) -> Any:
    """A callback that ends the process in round ``at``, as Ctrl-C does."""

    def stop(simulation: Simulation) -> None:
        if simulation.t == at:
            raise KeyboardInterrupt

    return stop


def names(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern) if path.name != LOCK)


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("name", algorithms(fedfw.L1Ball(1.0)))
def test_interrupted_and_resumed(name: str, participation: float, tmp_path: Path) -> None:
    q = Quadratics.on("l1")
    algorithm = algorithms(q.constraint)[name]
    options: dict[str, Any] = {"rounds": 24, "eval_every": 6, "participation": participation, "seed": 5}
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
        "eval_every": 25,
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
    flags = ["--rounds", "300", "--constraint", "l2:10", "--algorithm", "fedfw+", "--eval-every", "50"]
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    assert main(["run", *flags, "--out", whole]) == 0
    process = start_python(["-m", "fedfw", "run", *flags, "--out", cut])
    try:
        while not list(Path(cut).glob("checkpoint-*.safetensors")) and not process.ended():
            time.sleep(0.002)
    finally:
        process.kill()
        process.wait()
    assert not (Path(cut) / "model.pt").exists()  # it was killed before it was done
    assert main(["resume", cut]) == 0
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
    with pytest.raises(ValueError, match=r"holds a run of fedfw 0\.1, .* begin a new run"):
        RunFolder(tmp_path, resume=True)


@contextmanager
def somebody_at_work(folder: Path) -> Iterator[int]:
    """Another process that has claimed the folder; gives its number."""
    code = "import sys; from pathlib import Path; from fedfw.rounds.folders import RunFolder\n"
    code += (
        "import signal; folder = RunFolder(Path(sys.argv[1]), resume=True); Path(sys.argv[2]).touch(); signal.pause()"
    )
    claimed = folder.parent / f"{folder.name} is claimed"
    process = start_python(["-c", code, folder, claimed])
    try:
        while not claimed.exists() and not process.ended():
            time.sleep(0.002)
        assert claimed.exists()
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_folder_is_one_processs_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    q = Quadratics.on("l1")
    algorithm = fedfw.FedFW(q.constraint, penalty=0.1)
    run, new = tmp_path / "run", tmp_path / "new"
    whole = fedfw.simulate(q.problem, algorithm, rounds=20)
    fedfw.simulate(q.problem, algorithm, rounds=10, out=run)  # which lets others in when it is done
    new.mkdir()
    (run / "config.toml").write_text("rounds = 20\n")
    with somebody_at_work(run) as owner:
        told = rf"{run} is in use by another process \({owner}\)"
        with pytest.raises(ValueError, match=told):
            fedfw.simulate(q.problem, algorithm, rounds=20, out=run, resume=True)
        assert main(["resume", str(run)]) == 2
        assert f"{run} is in use by another process" in capsys.readouterr().err
    with somebody_at_work(new), pytest.raises(ValueError, match="is in use by another process"):
        fedfw.simulate(q.problem, algorithm, rounds=20, out=new)
    resumed = fedfw.simulate(q.problem, algorithm, rounds=20, out=run, resume=True)  # the other one was killed
    assert torch.equal(resumed.x, whole.x)


def test_a_run_that_is_broken_off_lets_others_in(tmp_path: Path) -> None:
    q = Quadratics.on("l1")
    with pytest.raises(KeyboardInterrupt):
        fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.1), out=tmp_path, callbacks=interrupt(17))
    with somebody_at_work(tmp_path):
        pass


def test_who_began_first_keeps_the_folder(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.save(1, {}, {}, History())
    first.release()
    with pytest.raises(ValueError, match="already holds a run"):
        second.claim()
    first.save(2, {}, {}, History())  # it may go on


def test_what_an_interrupted_write_left_is_removed(tmp_path: Path) -> None:
    RunFolder(tmp_path).save(1, {}, {}, History())
    for name in (".history.jsonl.123.tmp", ".checkpoint-00000002.safetensors.4567.tmp"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / ".mine.tmp").write_bytes(b"somebody's")
    RunFolder(tmp_path, resume=True)
    assert names(tmp_path, ".*") == [".mine.tmp"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomically(tmp_path / "taken", b"data")
    assert names(tmp_path) == ["taken"]


def test_checkpoints_are_their_owners(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        RunFolder(tmp_path / "open").save(1, {}, {}, History())
        RunFolder(tmp_path / "closed", private=True).save(1, {}, {}, History())
    finally:
        os.umask(mask)
    rights = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
    assert rights[tmp_path / "open" / "history.jsonl"] == 0o666
    assert {right for path, right in rights.items() if path.name != "history.jsonl"} == {0o600}
    assert rights[tmp_path / "closed" / "history.jsonl"] == 0o600


def damages(data: bytes) -> dict[str, bytes]:
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0x80
    return {"truncated": data[: len(data) // 2], "a bit": bytes(flipped), "empty": b"", "junk": bytes(range(256)) * 8}


@pytest.mark.filterwarnings("ignore:.*going back to the one before it")
@pytest.mark.parametrize("name", ["config.toml", "history.jsonl", "checkpoint-00000001.safetensors", "model.pt"])
def test_damaged_files_give_a_sentence_that_names_them(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = ["--rounds", "1", "--clients", "2", "--constraint", "l2:10", "--out", str(run)]
    assert main(["run", *flags]) == 0
    file = run / name
    whole = file.read_bytes()
    for how, data in damages(whole).items():
        file.write_bytes(data)
        capsys.readouterr()
        commands = {"resume": [], "compare": ["--out", str(tmp_path / "a.png")]}
        statuses = {command: main([command, str(run), *more]) for command, more in commands.items()}
        told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedfw ")]
        for line in told:
            assert name in line, how
        assert len(told) == sum(status == 2 for status in statuses.values())
        if name == "config.toml":
            assert statuses["resume"] == 2, how
        if name == "history.jsonl" and how != "empty":
            file.write_bytes(data)  # resuming has written it anew, from the checkpoint
            assert main(["compare", str(run), "--out", str(tmp_path / "a.png")]) == 2, how
    file.unlink()
    file.mkdir()
    capsys.readouterr()
    assert main(["resume", str(run)]) == 2
    assert name in capsys.readouterr().err
