"""Files of deployments: their rights, ledgers that others could have written, full disks, and what clients say."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedfw
from fedfw import Privacy
from fedfw.deployment import Consent, DataBudget, DeployedServer, Deployment
from fedfw.deployment.data_checks import check_data
from fedfw.deployment.files import open_unshared
from fedfw.deployment.ledger import Ledger, LedgerError, Release
from fedfw.deployment.messages import Kind
from fedfw.rounds.files import make_private_folder, owner_only, write_atomically
from tests.deployment.loopback import Loopback, small_task

FEDFW = fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01)
ONE = Release("run", 1, "a promise", 5.0, epsilon=0.5, delta=1e-6, weight=0.25, data="0123")


@pytest.fixture(params=[0, 0o022, 0o077, 0o277, 0o777], ids="umask {:04o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The rights of everything in a folder, by its name."""
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*")}


# --- rights ---


def test_what_is_private_is_its_owners_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    write_atomically(tmp_path / "atomic", b"", private=True)
    with open(tmp_path / "opened", "a", opener=owner_only):
        pass
    make_private_folder(tmp_path / "folder")
    assert modes(tmp_path) == {"atomic": 0o600, "opened": 0o600, "folder": 0o700}


def test_a_file_that_others_could_read_is_not_made_to_look_as_if_they_could_not(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    path.chmod(0o644)
    with open(path, "a", opener=owner_only):
        pass
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(FileExistsError):
        owner_only(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL)
    with pytest.raises(FileNotFoundError):
        owner_only(str(tmp_path / "nothing"), os.O_RDONLY)


def test_all_files_of_a_deployment_are_their_owners(umask: int, tmp_path: Path) -> None:
    """Server: history, model, pictures, checkpoints, journals. Clients: memory, logs, ledger, witness, consent."""
    tmp_path = tmp_path / "all"
    os.mkdir(tmp_path)
    tmp_path.chmod(0o700)
    owner = Consent("clinic", privacy=DataBudget(4.0, 1e-5)).write(tmp_path / "owner")
    task = small_task(FEDFW, clients=1, rounds=3, privacy=Privacy(2.0, 1e-5))
    check_data(task, 0, tmp_path / "owner" / "state", Consent.read(owner))
    server = DeployedServer(task, Deployment(out=tmp_path / "server"))
    federation = Loopback(server, tmp_path / "owner" / "state", consent=Consent.read(owner))
    federation.run(2)
    (tmp_path / "server" / "history.jsonl").unlink()  # it is made again
    federation.run(1)
    server.finish()
    found = modes(tmp_path)
    names = {Path(name).name for name in found}
    assert names >= {"history.jsonl", "model.pt", "plots.png", "consent.toml", "clinic.ledger.jsonl", "clinic.witness"}
    assert any(name.startswith("checkpoint-") for name in names)
    assert any(name.startswith("journal-") for name in names)
    assert {mode for name, mode in found.items() if not (tmp_path / name).is_dir()} == {0o600}
    assert {mode for name, mode in found.items() if (tmp_path / name).is_dir()} == {0o700}


# --- a ledger that others could have written ---


def _shared(ledger: Ledger) -> None:
    ledger.path.chmod(0o620)


def _written_by_all(ledger: Ledger) -> None:
    ledger.path.chmod(0o602)


def _in_a_shared_folder(ledger: Ledger) -> None:
    ledger.path.parent.chmod(0o777)


def _behind_a_link(ledger: Ledger) -> None:
    moved = ledger.path.with_name("moved")
    ledger.path.rename(moved)
    ledger.path.symlink_to(moved)


def _in_a_folder_behind_a_link(ledger: Ledger) -> None:
    folder = ledger.path.parent
    moved = folder.with_name("moved")
    folder.rename(moved)
    folder.symlink_to(moved)


def _of_another_kind(ledger: Ledger) -> None:
    ledger.path.unlink()
    os.mkfifo(ledger.path)


def _witness_behind_a_link(ledger: Ledger) -> None:
    assert ledger.witness is not None
    moved = ledger.witness.with_name("moved")
    ledger.witness.rename(moved)
    ledger.witness.symlink_to(moved)


def _shared_witness(ledger: Ledger) -> None:
    assert ledger.witness is not None
    ledger.witness.chmod(0o666)


REASONS: dict[Callable[[Ledger], None], str] = {
    _shared: "others can write it, expected mode 0600",
    _written_by_all: "others can write it, expected mode 0600",
    _in_a_shared_folder: "others can write its folder, expected chmod go-w",
    _behind_a_link: "it is a symbolic link, expected the file itself",
    _in_a_folder_behind_a_link: "its folder is a symbolic link, expected the folder itself",
    _of_another_kind: "it is no regular file",
    _witness_behind_a_link: "it is a symbolic link, expected the file itself",
    _shared_witness: "others can write it, expected mode 0600",
}


@pytest.mark.parametrize("change", REASONS, ids=lambda change: change.__name__)
def test_a_ledger_that_others_could_have_written_is_refused(change: Callable[[Ledger], None], tmp_path: Path) -> None:
    make_private_folder(tmp_path / "state")
    ledger = Ledger(tmp_path / "owner" / "clinic.ledger.jsonl", tmp_path / "state" / "clinic.witness")
    ledger.create()
    ledger.record(lambda so_far: ONE)
    change(ledger)
    for use in (ledger.releases, lambda: ledger.record(lambda so_far: ONE)):
        with pytest.raises(LedgerError) as refused:
            use()
        assert REASONS[change] in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_ledger_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "owner" / "clinic.ledger.jsonl")
    ledger.create()
    os.chown(ledger.path, 12345, 12345)
    assert ledger.releases() == []  # root may look, and has it written by nobody else
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(LedgerError, match="others can write it"):
        ledger.releases()


def test_a_file_in_a_folder_for_all_is_as_safe_as_its_sticky_bit(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    with open(folder / "file", "x", opener=owner_only):
        pass
    folder.chmod(0o1777)
    with open(folder / "file", "rb", opener=open_unshared):
        pass
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="others can write its folder"):
        open_unshared(str(folder / "file"), os.O_RDONLY)


@pytest.mark.parametrize("change", [_shared, _behind_a_link, _in_a_shared_folder], ids=lambda change: change.__name__)
def test_a_client_releases_nothing_beside_such_a_ledger(change: Callable[[Ledger], None], tmp_path: Path) -> None:
    owner = Consent("clinic", privacy=DataBudget(4.0, 1e-5)).write(tmp_path / "owner")
    task = small_task(FEDFW, clients=1, rounds=3, privacy=Privacy(2.0, 1e-5))
    consent = Consent.read(owner)
    check_data(task, 0, tmp_path / "owner" / "state", consent)
    federation = Loopback(DeployedServer(task), tmp_path / "owner" / "state", consent=consent)
    federation.round()
    assert federation.answered[-1].kind == Kind.STEP
    change(consent.ledger(0, tmp_path / "owner" / "state"))
    federation.round()
    assert federation.answered[-1].kind == Kind.REFUSED


def test_an_owners_folder_that_others_can_write_is_refused_when_it_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "owner"
    folder.mkdir()
    folder.chmod(0o775)
    with pytest.raises(ValueError, match=r"others can write .*, expected chmod go-w: a ledger there would be refused"):
        Consent("clinic").write(folder)
    assert not list(folder.iterdir())


# --- full disks ---


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on nothing more fits on the disk."""

    def fill(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr(os, "fsync", fill)


def test_a_full_disk_names_the_file(tmp_path: Path, full: Callable[[], None]) -> None:
    server = DeployedServer(small_task(FEDFW, rounds=9), Deployment(out=tmp_path))
    federation = Loopback(server, tmp_path / "clients")
    federation.run(3)
    full()
    with pytest.raises(OSError, match=r"No space left on device: '.*journal-") as failed:
        server.close()
    assert Path(str(failed.value.filename)).parent == tmp_path
    with pytest.raises(OSError, match=r"No space left on device: '.*/a\.pt'"):
        write_atomically(tmp_path / "a.pt", b"1")
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_server_whose_disk_is_full_says_how_to_go_on(tmp_path: Path, full: Callable[[], None]) -> None:
    apps = pytest.importorskip("fedfw.deployment.flower.apps")
    full()
    said = r"'.*/a'\. Mend that, and give the same command with resume=true in its --run"
    with pytest.raises(OSError, match=said), apps.say_how_to_resume(tmp_path):
        write_atomically(tmp_path / "a", b"1", private=True)
    with pytest.raises(ConnectionError, match=r"^the SuperLink is gone$"), apps.say_how_to_resume(tmp_path):
        raise ConnectionError("the SuperLink is gone")


# --- what clients say ---


@pytest.mark.parametrize("text", ["x\n\x1b[2Jround 3: all is well", "\u202egnp.exe", "\x9b2J", "\udc80", "\r"])
def test_what_a_client_says_reaches_no_terminal_as_it_is(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = DeployedServer(small_task(FEDFW, rounds=9))
    federation = Loopback(server, tmp_path)
    [order] = server.open({0}).values()
    answer = federation.ask(order).fields()
    with caplog.at_level(logging.WARNING, logger="fedfw"):
        server.refuse(0, f"failed: {text}")
        server.refuse(0, f"{text}: as the kind of a reason")
        for changed in (
            {text: 1},
            {text: [1]},
            {text: "x" * 300},
            {"run": text},
            {"kind": text},
            {"t": text},
            {text * 300: b""},
            {text: 2**80},
        ):
            assert server.take(0, answer | changed) is not None
    assert len(caplog.messages) == 10
    assert all(message.isprintable() for message in caplog.messages)
    assert all(reason.isprintable() for reason in server.close().refused)


def test_what_went_wrong_on_a_node_is_written_without_control_characters(tmp_path: Path) -> None:
    from fedfw.deployment.store import FAILURES, note_failure

    try:
        raise ValueError("one\x1b[2J\rtwo")
    except ValueError:
        note_failure(tmp_path / "state")
    text = (tmp_path / "state" / FAILURES).read_text()
    assert r"one\x1b[2J\rtwo" in text
    assert all(line.isprintable() for line in text.splitlines())
