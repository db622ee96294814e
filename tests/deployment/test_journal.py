"""A server that is killed between any two writes goes on to the same bits, from its checkpoint and
its journal.
"""

import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw.deployment import DeployedServer, Deployment, Task
from fedfw.deployment.messages import Hello
from fedfw.rounds.folders import Journal, RunFolder
from fedfw.simulation import Options
from tests.table import zero_layer

from .loopback import Loopback

L1, L2 = fedfw.L1Ball(5.0), fedfw.L2Ball(5.0)
CASES: dict[str, tuple[fedfw.Algorithm, dict[str, Any]]] = {
    "FedFW, l1": (fedfw.FedFW(L1, penalty=0.01), {}),
    "FedFW+, l1, absentees": (fedfw.FedFWPlus(L1, penalty=0.01), {"participation": 3}),
    "FedFW+, l1, local steps": (
        fedfw.FedFWPlus(L1, penalty=0.01),
        {"local_steps": 2, "participation": 3},
    ),
    "anchored, l1, absentees": (
        fedfw.FedFWAnchored(L1, penalty=0.01, anchor_every=3, momentum=0.5),
        {"participation": 3},
    ),
    "anchored, 4 bits": (
        fedfw.FedFWAnchored(L1, penalty=0.01, compress="bits:4"),
        {"participation": 3},
    ),
    "FedFW+, l2": (fedfw.FedFWPlus(L2, penalty=0.01), {}),
    "FedFW+, l1, curvature": (
        fedfw.FedFWPlus(L1, penalty=0.01, schedule="curvature"),
        {"participation": 3},
    ),
    "FedAvg": (fedfw.FedAvg(L1, lr=0.5), {"participation": 3}),
    "FedPGD, top 3": (
        fedfw.FedPGD(
            L2, lr=0.5, compress="topk:3", extrapolation="nesterov", compress_down="topk:4"
        ),
        {"participation": 3},
    ),
    "FedLMO, 4 bits": (fedfw.FedLMO(L2, compress="bits:4"), {"local_steps": 2, "participation": 3}),
}
FEATURES, ROUNDS, CLIENTS = (
    150,
    6,
    4,
)  # anchors come in rounds 1 and 4, or in 1 and 6 where the gap decides


def wide_task(name: str, dtype: torch.dtype = torch.float32, rounds: int = ROUNDS) -> Task:
    """Softmax regression with 453 parameters, of which sparse atoms touch few."""
    algorithm, options = CASES[name]

    def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(client)
        inputs = torch.randn(8, FEATURES, generator=generator, dtype=dtype) + client % 3
        return inputs, torch.randint(0, 3, (8,), generator=generator)

    model = zero_layer(FEATURES, 3, dtype=dtype)
    return Task(
        model,
        nnf.cross_entropy,
        algorithm,
        data,
        CLIENTS,
        options=Options(rounds=rounds, **options),
    )


def settings_of(folder: Path) -> Deployment:
    return Deployment(out=folder, share_gradients=True, tell_loss=True)


def assert_same(server: DeployedServer, other: DeployedServer) -> None:
    """All that the next rounds go by, to the bit; where columns stand in the memory is no part of
    it.
    """
    assert server.roster.state() == other.roster.state()
    assert list(server.history) == list(other.history)
    assert server.run == other.run
    one, two = server.coordinator, other.coordinator
    everyone = torch.arange(len(server.roster))
    memories = one.memory.gather(everyone), two.memory.gather(everyone)
    assert all(torch.equal(memories[0][name], memories[1][name]) for name in memories[1])
    ours, theirs = one.state(), two.state()
    for name in theirs:
        if name.startswith(("server.", "wire.", "holds", "numbers")):
            assert ours[name].numpy().tobytes() == theirs[name].numpy().tobytes(), name
    bound = two.proof.bound.value()
    assert one.proof.bound.value() == (None if bound is None else pytest.approx(bound, rel=1e-12))


@pytest.fixture
def _few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints in between, so that their writes are among those after which the server is
    killed.
    """
    monkeypatch.setattr("fedfw.rounds.folders._MOST_ENTRIES", 2)


@pytest.mark.usefixtures("_few_entries")
@pytest.mark.parametrize("name", CASES)
def test_a_kill_between_any_two_writes_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = wide_task(name, rounds=6)
    loop = Loopback(DeployedServer(task, settings_of(tmp_path / "server")), tmp_path / "clients")
    copies: list[Path] = []

    def copying(function: Callable[..., Any]) -> Callable[..., Any]:
        def copied(*arguments: Any, **options: Any) -> Any:
            copies.append(tmp_path / f"copy-{len(copies)}")
            for part in ("server", "clients"):
                shutil.copytree(tmp_path / part, copies[-1] / part)
            return function(*arguments, **options)

        return copied

    loop.run(3)
    with monkeypatch.context() as watched:
        watched.setattr(Journal, "append", copying(Journal.append))
        for write in ("save_checkpoint", "write_atomically"):
            original = getattr(__import__("fedfw.rounds.folders", fromlist=[write]), write)
            watched.setattr(f"fedfw.rounds.folders.{write}", copying(original))
        watched.setattr(Path, "unlink", copying(Path.unlink))
        loop.run(2)
    loop.run(1)
    assert len(copies) >= 6
    for copy in copies:
        resumed = Loopback(
            DeployedServer(task, replace(settings_of(copy / "server"), resume=True)),
            copy / "clients",
        )
        assert resumed.server.t in (3, 4, 5)
        resumed.run(6 - resumed.server.t)
        assert_same(resumed.server, loop.server)
        assert all(not record.refused for record in resumed.server.history)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["FedFW, l1", "FedFW+, l1, absentees", "anchored, l1, absentees", "FedAvg"]
)
def test_clients_that_come_and_go_do_so_again(name: str, tmp_path: Path) -> None:
    task, settings = wide_task(name), settings_of(tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path / "clients")
    loop.run(2)
    loop.server.meet(Hello(7))
    loop.round()
    loop.leaving = {1}
    while 1 in loop.server.roster.counted:
        loop.round()
    loop.round(set())  # nobody is there
    again = DeployedServer(task, replace(settings, resume=True))
    assert_same(again, loop.server)
    assert again.roster.members == [0, 2, 3, 7]


@pytest.mark.parametrize("change", [{"run": "another"}, {"digest": "another"}])
def test_a_journal_of_other_rounds_is_not_gone_on_from(
    change: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, settings = wide_task("FedFW, l1"), settings_of(tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path / "clients")
    loop.run(3)
    entries = RunFolder.entries

    def changed(folder: RunFolder, t: int) -> Iterator[tuple[dict[str, torch.Tensor], Any]]:
        for payloads, entry in entries(folder, t):
            history = entry["history"]
            if "digest" in change:
                history = re.sub('"digest": ?"[0-9a-f]+"', '"digest":"another"', history)
            yield payloads, entry | {"run": change.get("run", entry["run"]), "history": history}

    monkeypatch.setattr(RunFolder, "entries", changed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = DeployedServer(task, replace(settings, resume=True))
    assert again.run != loop.server.run  # clients are handed their memory under a new name
    assert any("did not give the same model" in str(one.message) for one in said) == (
        "digest" in change
    )
