"""Nothing of an exception reaches the server but a constant text, and an owner's file is what a Flower client obeys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedfw
from fedfw import Privacy
from fedfw.deployment import Consent, DataBudget, DeployedServer, Deployment, Task
from fedfw.deployment.consent import Refusal
from fedfw.deployment.messages import Kind
from fedfw.deployment.server_options import usual_options
from tests.deployment.loopback import small_task

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedfw.deployment.flower.apps import FAILED, ClientFailedError, client_app
from fedfw.deployment.flower.strategy import RECORD

FEDFW = fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01)
PROMISE = Privacy(0.5, 1e-5)


@pytest.fixture(autouse=True)
def _inside_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages can only be made where it runs an app."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def send(task: Task, kind: str, fields: dict[str, Any], run: dict[str, Any], **node: Any) -> dict[str, Any]:
    """What the client's app of a node answers to a message."""
    message = Message(RecordDict({RECORD: ConfigRecord(fields)}), dst_node_id=1, message_type=kind)
    context = Context(1, 1, {"partition-id": 0} | node, RecordDict(), run)
    reply = client_app(lambda config: task)(message, context)
    return dict(reply.content[RECORD])  # type: ignore[arg-type]


def ask(task: Task, run: dict[str, Any] | None = None, **node: Any) -> dict[str, Any]:
    """What a node answers to the first order of a server."""
    server = DeployedServer(replace(task, data=small_task(FEDFW).data), Deployment(tell_loss=True))
    return send(task, "train", server.open({0})[0].fields(), run or {}, **node)


def _text(client: int) -> Any:
    return torch.tensor([float("secret")])


def _label(client: int) -> Any:
    return torch.ones(3, 4), torch.tensor([0, 9, 1])


def _unwritable(client: int) -> Any:
    raise ValueError("secret \udcff")


def _missing(client: int) -> Any:
    raise FileNotFoundError(2, "no secret here", "/home/secret/John Smith.csv")


@pytest.mark.parametrize("promise", [None, PROMISE])
@pytest.mark.parametrize("data", [_text, _label, _missing, _unwritable])
def test_an_exceptions_text_stays_on_the_node(
    data: Callable[[int], Any], promise: Privacy | None, tmp_path: Path
) -> None:
    task = replace(small_task(FEDFW, rounds=3, privacy=promise), data=data)
    state = {"state-dir": str(tmp_path / "state")}
    if promise is None:
        with pytest.raises(ClientFailedError) as raised:
            ask(task, **state)
        assert str(raised.value) == FAILED
        assert raised.value.__cause__ is raised.value.__context__ is None
    else:  # a failure would tell of the data: it answers as if its budget were spent, whatever it is asked next
        for _ in range(2):
            answer = ask(task, **state)
            assert answer["kind"] == Kind.LEAVING
            assert answer["payload"] == answer["digest"] == b""
            task = replace(task, data=small_task(FEDFW).data)
    log = tmp_path / "state" / "failures.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert {_text: "secret", _label: "9", _missing: "John Smith.csv", _unwritable: r"\udcff"}[data] in log.read_text()


def test_numbers_of_data_that_cannot_be_read_fail_in_the_same_way(tmp_path: Path) -> None:
    task = replace(small_task(fedfw.FedFW(fedfw.L1Ball(5.0)), rounds=3), data=_text)
    path = Consent("clinic", share=("numbers",)).write(tmp_path / "owner")
    node = {"state-dir": str(tmp_path / "state")}
    with pytest.raises(ClientFailedError, match=FAILED):
        send(task, "query", {}, {}, consent=str(path), **node)
    assert "steepness" not in send(task, "query", {}, {}, **node)  # without consent the data are not looked at


def test_a_full_disk_does_not_let_the_text_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state").write_text("no folder")
    with pytest.raises(ClientFailedError, match=FAILED) as raised:
        ask(replace(small_task(FEDFW), data=_text), **{"state-dir": str(tmp_path / "state")})
    assert raised.value.__cause__ is raised.value.__context__ is None
    said = capsys.readouterr().err
    assert f"fedfw: {tmp_path / 'state/failures.log'} cannot be written (File exists)" in said
    assert "secret" not in said


def test_the_file_of_consent_is_the_nodes_never_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (*usual_options(), "consent")  # a server that may set it gains nothing by it
    strict = str(Consent("strict", privacy=DataBudget(1.0, 1e-5), options=options).write(tmp_path / "strict"))
    loose = str(Consent("loose", share=("losses",), options=options).write(tmp_path / "loose"))
    task, state = small_task(FEDFW, rounds=3), str(tmp_path / "state")

    def answer(run: str = "", **node: Any) -> dict[str, Any]:
        return ask(task, run={"consent": run}, **({"state-dir": state} | node))

    assert answer(run=loose)["payload"] == Refusal.OPTION.encode()
    assert "loss" in answer(run=strict, consent=loose)
    assert answer(run=loose, consent=strict)["payload"] == Refusal.PLAIN.encode()
    monkeypatch.setenv("FEDFW_CONSENT", strict)
    assert answer(run=loose)["kind"] == Kind.REFUSED
    assert "loss" in answer(consent=loose)
    Path(loose).chmod(0o644)
    with pytest.raises(ClientFailedError):
        answer(consent=loose)


def test_noise_from_a_seed_is_refused_by_every_flower_client(tmp_path: Path) -> None:
    task = small_task(FEDFW, rounds=3, privacy=replace(PROMISE, not_private_seed=0))
    assert ask(task, **{"state-dir": str(tmp_path)})["payload"] == Refusal.SEED.encode()


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"consnet": "/etc/fedfw/consent.toml"}, "node-config: unknown key 'consnet' (did you mean 'consent'?)"),
        ({"leaving": "false"}, "node-config: leaving = 'false', expected true or false"),
        ({"consent": 3}, "node-config: consent = 3, expected a path in quotes"),
        ({"partition-id": "0"}, "node-config: partition-id = '0', expected the client's number"),
    ],
)
def test_a_nodes_settings_that_would_be_ignored_are_refused(node: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """A misspelt key used to leave the node without its owner's file, and the text "false" made it leave."""
    state = tmp_path / "state"
    with pytest.raises(ClientFailedError):
        ask(small_task(FEDFW), **{"state-dir": str(state)} | node)
    assert reason in (state / "failures.log").read_text()


def test_a_variable_that_nothing_reads_is_refused_by_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFW_CONSNET", str(tmp_path / "consent.toml"))
    with pytest.raises(ClientFailedError):
        ask(small_task(FEDFW), **{"state-dir": str(tmp_path / "state")})
    assert "FEDFW_CONSNET is not read (did you mean FEDFW_CONSENT?)" in (tmp_path / "state/failures.log").read_text()
