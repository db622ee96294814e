"""Run folders: an interrupted run goes on to the same bits, whatever interrupted it and whatever
was damaged.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from torch import Tensor, nn

import fedfw
from fedfw.cli.main import main
from fedfw.config.run_config import RunConfig
from fedfw.problems.digest import describe_problem
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.checkpoints import (
    FORMAT,
    DamagedCheckpointError,
    _checksum,
    load_checkpoint,
    save_checkpoint,
)
from fedfw.rounds.files import LOCK
from fedfw.rounds.folders import Journal, RunFolder
from fedfw.rounds.options import Options
from fedfw.rounds.records import History
from fedfw.simulation import Simulation
from fedfw_reproduction.known_quadratics import Quadratics
from tests.processes import start_python
from tests.table import zero_layer

pytestmark = pytest.mark.usefixtures("no_plots")


def names(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern) if path.name != LOCK)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    q = Quadratics.on("l1")
    algorithm = fedfw.FedFWPlus(q.constraint, penalty=0.05, momentum=0.9)
    whole = fedfw.simulate(q.problem, algorithm, rounds=40, out=tmp_path)
    assert names(tmp_path, "checkpoint-*") == [
        "checkpoint-00000030.safetensors",
        "checkpoint-00000040.safetensors",
    ]
    newest = tmp_path / "checkpoint-00000040.safetensors"
    data = newest.read_bytes()
    for spoilt in (data[:-5], data[:200] + b"x" + data[201:], b"", b"fedfw-checkpoint 2\n{"):
        newest.write_bytes(spoilt)
        with pytest.warns(UserWarning, match="going back to the one before it"):
            resumed = fedfw.simulate(q.problem, algorithm, rounds=40, out=tmp_path, resume=True)
        assert torch.equal(whole.x, resumed.x)
        assert len(resumed.history) == 40


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """A process that is killed -9 in the middle; resuming gives the bits of an undisturbed run."""
    flags = [
        "--rounds",
        "300",
        "--constraint",
        "l2:10",
        "--algorithm",
        "fedfw+",
        "--eval-every",
        "50",
    ]
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


@pytest.mark.parametrize(
    "name",
    ["history.jsonl", "model.pt", "checkpoint-00000001.safetensors"],
)
def test_a_folder_that_holds_a_run_is_not_written_to(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="already holds a run"):
        RunFolder(tmp_path)
    assert names(tmp_path) == [name]


@contextmanager
def somebody_at_work(folder: Path) -> Iterator[int]:
    """Another process that has claimed the folder; gives its number."""
    code = "import sys; from pathlib import Path; from fedfw.rounds.folders import RunFolder\n"
    code += "import signal; folder = RunFolder(Path(sys.argv[1]), resume=True); "
    code += "Path(sys.argv[2]).touch(); signal.pause()"
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


def test_a_folder_is_one_processs_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    q = Quadratics.on("l1")
    algorithm = fedfw.FedFW(q.constraint, penalty=0.1)
    run, new = tmp_path / "run", tmp_path / "new"
    whole = fedfw.simulate(q.problem, algorithm, rounds=20)
    fedfw.simulate(q.problem, algorithm, rounds=10, out=run)  # which lets others in when it is done
    new.mkdir()
    (run / "config.toml").write_text(RunConfig.of(rounds=20).to_toml())
    with somebody_at_work(run) as owner:
        told = rf"{run} is in use by another process \({owner}\)"
        with pytest.raises(ValueError, match=told):
            fedfw.simulate(q.problem, algorithm, rounds=20, out=run, resume=True)
        assert main(["resume", str(run)]) == 2
        assert f"{run} is in use by another process" in capsys.readouterr().err
    with somebody_at_work(new), pytest.raises(ValueError, match="is in use by another process"):
        fedfw.simulate(q.problem, algorithm, rounds=20, out=new)
    resumed = fedfw.simulate(
        q.problem, algorithm, rounds=20, out=run, resume=True
    )  # the other one was killed
    assert torch.equal(resumed.x, whole.x)


def test_what_an_interrupted_write_left_is_removed(tmp_path: Path) -> None:
    RunFolder(tmp_path).save(1, {}, {}, History())
    for name in (".history.jsonl.123.tmp", ".checkpoint-00000002.safetensors.4567.tmp"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / ".mine.tmp").write_bytes(b"somebody's")
    RunFolder(tmp_path, resume=True)
    assert names(tmp_path, ".*") == [".mine.tmp"]


def damages(data: bytes) -> dict[str, bytes]:
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0x80
    return {
        "truncated": data[: len(data) // 2],
        "a bit": bytes(flipped),
        "empty": b"",
        "junk": bytes(range(256)) * 8,
    }


@pytest.mark.filterwarnings("ignore:.*going back to the one before it")
@pytest.mark.parametrize(
    "name", ["config.toml", "history.jsonl", "checkpoint-00000001.safetensors", "model.pt"]
)
def test_damaged_files_give_a_sentence_that_names_them(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = ["--rounds", "1", "--clients", "2", "--constraint", "l2:10", "--out", str(run)]
    flags += ["--momentum", "0.9"]  # half of this configuration ends within a line
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


# --- Checkpoints as files: everything comes back to the bit, and nothing is taken that was not
# written ---

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 1e3
    values = values.to(draw(st.sampled_from(DTYPES)))
    if values.is_floating_point() and values.numel():
        values.view(-1)[0] = draw(st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 1e-42]))
    return values.T if values.ndim == 2 and draw(st.booleans()) else values


names_of_checkpoints = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12
)
json_data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    held=st.dictionaries(names_of_checkpoints, tensors(), max_size=5),
    meta=st.dictionaries(st.text(max_size=6), json_data, max_size=4),
)
@settings(max_examples=60)
def test_everything_comes_back_to_the_bit(held: dict[str, Tensor], meta: dict[str, Any]) -> None:
    held.pop("__metadata__", None)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        save_checkpoint(path, held, meta)
        again, told = load_checkpoint(path)
    assert told == meta
    assert again.keys() == held.keys()
    for name, value in held.items():
        assert again[name].dtype == value.dtype
        assert again[name].shape == value.shape
        assert again[name].contiguous().numpy().tobytes() == value.contiguous().numpy().tobytes()
        if again[name].numel():
            again[name].view(-1)[0] = 1  # what was read can be written to


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "checkpoint"
    save_checkpoint(
        path,
        {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7)},
        {"round": 3, "history": "{}\n"},
    )
    return path.read_bytes()


def test_every_changed_byte_is_noticed(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(
            (DamagedCheckpointError, ValueError), match=r"damaged|has checkpoint format"
        ):
            load_checkpoint(path)
    path.write_bytes(good)
    assert load_checkpoint(path)[1]["round"] == 3


@given(cut=st.integers(0, 10**6), more=st.binary(max_size=5), noise=st.binary(max_size=300))
def test_cut_lengthened_and_foreign_files_are_damaged(
    good: bytes, cut: int, more: bytes, noise: bytes
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        for data in (
            good[: cut % len(good)],
            good + b"x" + more,
            noise,
            b"fedfw-checkpoint 2\n{" + noise,
        ):
            path.write_bytes(data)
            with pytest.raises(DamagedCheckpointError, match="is damaged"):
                load_checkpoint(path)


def test_another_format_is_refused_in_words(
    good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not damaged: another version of the library wrote it."""
    path = tmp_path / "checkpoint"
    monkeypatch.setattr("fedfw.rounds.checkpoints.FORMAT", FORMAT + 4)
    save_checkpoint(path, {"a": torch.ones(2)}, {})
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match=f"has checkpoint format {FORMAT + 4}, this version reads {FORMAT}"
    ) as caught:
        load_checkpoint(path)
    assert not isinstance(caught.value, DamagedCheckpointError)


# --- what would take much memory ---


def repacked(path: Path, shapes: dict[str, Any], **arrays: Any) -> None:
    """A checkpoint of these arrays and shapes, with a checksum that fits."""
    held = {name.replace("_at", "\0at"): np.asarray(array) for name, array in arrays.items()}
    head = {"format": str(FORMAT), "meta": "{}", "shapes": json.dumps(shapes)}
    path.write_bytes(save(held, head | {"sha256": _checksum(held, head)}))


ENTRIES = {"x": np.ones(2, np.float32), "x_at": np.array([0, 1], np.uint32)}


@pytest.mark.parametrize(
    ("shapes", "arrays", "message"),
    [
        (
            {"x": [1 << 40]},
            ENTRIES,
            r"its tensors take 4096\.0 GiB of memory, expected at most 1\.0 GiB",
        ),
        ({"x": [3, 1 << 28]}, ENTRIES, r"its tensors take 3\.0 GiB of memory"),
        ({"x": [-1]}, ENTRIES, r"'x' has the shape \[-1\]"),
        ({"x": ["2"]}, ENTRIES, r"'x' has the shape"),
        ({"x": [1]}, ENTRIES, r"'x' has entries outside of its shape \[1\]"),
        ({"x": [3]}, ENTRIES | {"x_at": np.array([0, -1])}, "'x' has entries outside of its shape"),
        ({"x": [3]}, ENTRIES | {"x_at": np.array([0])}, "'x' has entries outside of its shape"),
        (
            {"x": [3]},
            ENTRIES | {"x_at": np.array([0.0, 1.0])},
            "'x' has entries outside of its shape",
        ),
        ({"x": [3]}, {"x": np.ones(2, np.float32)}, "x.*at"),
        ({"y": [3]}, ENTRIES, "'y'"),
    ],
)
def test_a_small_file_does_not_become_large_tensors(
    shapes: dict[str, Any], arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    repacked(tmp_path / "checkpoint", shapes, **arrays)
    with pytest.raises(DamagedCheckpointError, match=f"checkpoint is damaged: .*{message}"):
        load_checkpoint(tmp_path / "checkpoint")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_written_can_be_read_within_the_limit(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {
        name: torch.zeros(size, dtype=dtype)
        for name, size in (("a", 5000), ("b", 50_000), ("c", 6000))
    }
    for number, tensor in enumerate(held.values(), 1):
        tensor[number] = number
    path = tmp_path / "checkpoint"
    save_checkpoint(path, held, {})
    assert path.stat().st_size < 2000
    monkeypatch.setattr("fedfw.data.limits.LEAST", 50_000)
    with pytest.raises(
        DamagedCheckpointError, match="where the file is trusted, allow more by FEDFW_DATA_MEMORY"
    ):
        load_checkpoint(path)
    save_checkpoint(path, held, {})  # the largest tensor is now written whole
    whole = held["b"].nbytes
    assert whole < path.stat().st_size < whole + 2000
    again, _ = load_checkpoint(path)
    assert all(torch.equal(again[name], held[name]) for name in held)


# --- Journals ---


def rounds_of(path: Path) -> list[int]:
    return [meta["round"] for _, meta in Journal(path).entries()]


def fill(path: Path, count: int) -> list[int]:
    """Entries 1, 2, ...; returns where each of them ends."""
    journal, ends = Journal(path), [0]
    for t in range(1, count + 1):
        journal.append({"x": torch.full((3,), float(t))}, {"round": t})
        ends.append(journal.size)
    return ends


def test_entries_come_back_to_the_bit_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert list(Journal(path).entries()) == []
    x = torch.tensor([1e-320, -0.0, float("nan")], dtype=torch.float64)
    first = Journal(path)
    first.append({"x": x}, {"round": 1})
    first.append({}, {"round": 2})
    (tensors, _), (nothing, _) = Journal(path).entries()
    assert tensors["x"].numpy().tobytes() == x.numpy().tobytes()
    assert nothing == {}
    assert first.size == path.stat().st_size


def test_an_entry_that_was_cut_off_at_any_byte_is_dropped_and_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ends = fill(path, 3)
    data = path.read_bytes()
    for cut in range(ends[2], ends[3]):
        path.write_bytes(data[:cut])
        journal = Journal(path)
        assert [meta["round"] for _, meta in journal.entries()] == [1, 2]
        assert (journal.count, journal.size) == (2, ends[2])
    journal.append({"x": torch.full((3,), 3.0)}, {"round": 3})
    assert rounds_of(path) == [1, 2, 3]


@pytest.mark.parametrize("entry", [1, 2, 3])
def test_an_entry_that_was_changed_is_damage(entry: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ends = fill(path, 3)
    data = bytearray(path.read_bytes())
    for place in range(ends[entry - 1] + 8, ends[entry], 5):
        changed = bytearray(data)
        changed[place] ^= 4
        path.write_bytes(changed)
        entries = Journal(path).entries()
        assert [next(entries)[1]["round"] for _ in range(1, entry)] == list(range(1, entry))
        with pytest.raises(DamagedCheckpointError, match="damaged"):
            next(entries)


# --- What makes two runs the same: everything that changes the model, and nothing else ---

Q = Quadratics.on("l1")
D = Q.constraint


def stamp(
    algorithm: fedfw.Algorithm | None = None, problem: fedfw.Problem | None = None, **options: Any
) -> str:
    algorithm = fedfw.FedFW(D, penalty=0.1) if algorithm is None else algorithm
    found = Simulation(
        Q.problem if problem is None else problem, algorithm, Options(**options)
    ).fingerprint
    return repr({name: text for name, text in found.items() if name != "rounds"})


def test_fingerprints_tell_runs_apart_that_would_go_another_way() -> None:
    same = stamp()
    assert stamp() == same
    assert (
        stamp(rounds=7, eval_every=3, tol=0.1, participation=1.0) == same
    )  # how long, and what is looked at
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


def client(seed: int, edit: Any = None) -> tuple[Tensor, Tensor]:
    """Nine samples, of which one may be edited."""
    inputs = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
    targets = torch.arange(9) % 3
    if edit is not None:
        edit(inputs, targets)
    return inputs, targets


def linear(**changes: Any) -> fedfw.Problem:
    clients = [client(0), client(1), client(2)]
    made = {"loss": nnf.cross_entropy, "clients": clients, "test": client(3)} | changes
    return fedfw.Problem(zero_layer(4, 3), **made)


CHANGES: dict[str, dict[str, Any]] = {
    "": {},
    "one entry": {"clients": [client(0), client(1, lambda x, y: x[3, 2].add_(1e-6)), client(2)]},
    "one label": {"clients": [client(0), client(1), client(2, lambda x, y: y[4].fill_(2))]},
    "samples in another order": {
        "clients": [tuple(t.roll(1, 0) for t in client(0)), client(1), client(2)]
    },
    "two clients swapped": {"clients": [client(2), client(1), client(0)]},
    "test": {"test": client(3, lambda x, y: y[0].fill_(1))},
    "l2": {"l2": 0.001},
    "more l2": {"l2": 0.002},
    "weights": {"weights": [1.0, 1.0, 2.0]},
    "smoothed": {"loss": partial(nnf.cross_entropy, label_smoothing=0.1)},
    "class weights": {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))},
    "other class weights": {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0]))},
}


def test_problems_are_told_apart_by_data_loss_weights_and_l2() -> None:
    found = {name: describe_problem(linear(**changes)) for name, changes in CHANGES.items()}
    plain = describe_problem(linear())
    assert plain == found[""]
    assert len(set(map(repr, found.values()))) == len(found)
    for change, key in (("one entry", "data"), ("one label", "data"), ("test", "test data")):
        assert [name for name in plain if plain[name] != found[change][name]] == [key]
    assert [name for name in plain if plain[name] != found["l2"][name]] == ["l2"]
