"""Real processes with TLS and keys on 127.0.0.1. Run by ``bash scripts/test-deployment.sh
[faults]``.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedfw.cli.deploy_demo import Demo
from fedfw.cli.deploy_init import copy_app
from fedfw.config import RunConfig, merge
from fedfw.deployment import DeployedRecord
from fedfw.deployment.flower.keys import make_node_key
from fedfw.deployment.flower.local import LocalFederation
from fedfw.rounds.checkpoints import load_checkpoint
from fedfw.rounds.wire import digest

PATIENCE = 400.0
BASE = RunConfig(clients=3, rounds=3, partition="iid", eval_every=1)
MISBEHAVING = '''
"""The app with a client that is delivered orders twice and damages some of its answers."""

from flwr.app import ConfigRecord

from federation.task import make_task
from fedfw.deployment.flower import client_app, server_app


def misbehave(message, context, call_next):
    reply = call_next(message, context)
    if message.metadata.message_type != "train":
        return reply
    reply = call_next(message, context)
    order = message.content["fedfw"]
    if order["client"] == 1 and order["t"] % 3 == 2:
        damaged = dict(reply.content["fedfw"])
        damaged["payload"] = damaged["payload"] + b"?"
        reply.content["fedfw"] = ConfigRecord(damaged)
    return reply


server = server_app(make_task)
client = client_app(make_task, mods=[misbehave])
'''


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Looks again and again, for at most a few minutes."""
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.2)


def records(out: Path) -> list[DeployedRecord]:
    path = out / "history.jsonl"
    return (
        [DeployedRecord(**json.loads(line)) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


def deploy(federation: LocalFederation, app: Path, demo: Demo, out: Path, **settings: Any) -> str:
    how = {"round-timeout": 60.0} | {
        name.replace("_", "-"): value for name, value in settings.items()
    }
    config = {**demo.settings, "out": str(out.absolute()), **how}
    return federation.submit(app, config, f"run-{out.name}-{time.monotonic_ns()}")


def finished(federation: LocalFederation, process: str, out: Path) -> list[DeployedRecord]:
    wait_until(lambda: not federation.running(process), f"the end of {process}")
    assert (out / "done.json").exists(), federation.log(process, 60)
    return records(out)


def check_invariants(history: list[DeployedRecord], folder: Path) -> None:
    """xbar is the mean of the x_i in every round, and no client took an exchange twice."""
    assert all(record.drift < 1e-4 for record in history)
    for log in (folder / "state").glob("*/*.log.jsonl"):
        steps = [
            (e["round"], e["exchange"])
            for line in log.read_text().splitlines()
            if "stepped" in (e := json.loads(line))["event"]
        ]
        assert len(steps) == len(set(steps))


def supervise(federation: LocalFederation, client: int, done: Callable[[], bool]) -> None:
    """Start a client again until it stays: Flower refuses a node until its last session has lapsed,
    and it gives up.
    """
    name = federation.start_node(client)
    began = tried = time.monotonic()
    while not done():
        assert time.monotonic() < began + PATIENCE
        if not federation.running(name) and time.monotonic() > tried + 10:
            federation.start_node(client)
            tried = time.monotonic()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    folder = tmp_path_factory.mktemp("federation")
    copy_app(folder / "app")
    with LocalFederation(folder, 3) as running:
        yield running


@pytest.mark.deployment
@pytest.mark.parametrize(
    ("algorithm", "constraint", "batch", "rounds"),
    [
        ("fedfw", "l1:10", None, 2),
        ("fedfw-anchored", "l1:10", None, 3),
        ("fedfw-sto", "l2:10", 32, 2),
    ],
)
def test_deployed_runs_have_the_bits_of_simulated_ones(
    federation: LocalFederation, algorithm: str, constraint: str, batch: int | None, rounds: int
) -> None:
    """Two rounds have every form of a message, and three an anchor before and behind a round
    without one.
    """
    chosen = {"algorithm": algorithm, "constraint": constraint, "rounds": rounds}
    chosen |= {"batch-size": batch} if batch else {}
    chosen |= {"anchor-every": 2} if algorithm == "fedfw-anchored" else {}
    demo = Demo.of(merge(BASE, chosen, "test"))
    out = federation.folder / algorithm
    app = federation.folder / "app"
    history = finished(
        federation, deploy(federation, app, demo, out, share_gradients=True, tell_loss=True), out
    )
    assert [record.participants for record in history] == [3] * rounds
    for record, simulated in zip(history, demo.simulated.history, strict=True):
        for counter in ("bytes_up", "bytes_down", "evidence_up", "evidence_down"):
            assert getattr(record, counter) == getattr(simulated, counter), counter
    assert history[-1].digest == digest(demo.simulated.x).hex()
    assert [record.accuracy for record in history] == [
        record.accuracy for record in demo.simulated.history
    ]
    check_invariants(history, federation.folder)
    _, meta = load_checkpoint(max(out.glob("checkpoint-*")))
    assert [(client, len(key)) for client, key in meta["nodes"]] == [
        (0, 64),
        (1, 64),
        (2, 64),
    ]  # hashes of nodes' keys


@pytest.mark.deployment
def test_strangers_are_refused(federation: LocalFederation) -> None:
    unregistered = federation.folder / "keys" / "client-7"
    make_node_key(unregistered)
    for number in (7, 8):  # with a key that nobody knows, and without any
        name = federation.start_node(number)
        wait_until(lambda name=name: not federation.running(name), f"{name} to give up")  # type: ignore[misc]
        assert "Activated" not in federation.log(name, 100)


# --- longer: everything that can go wrong ---


@pytest.mark.faults
@pytest.mark.parametrize("disk", ["with its disk", "without its disk"])
def test_faults_of_clients(disk: str, tmp_path: Path) -> None:
    """A client is killed, with or without its disk, while another is delivered orders twice and
    damages answers.
    """
    copy_app(tmp_path / "app")
    (tmp_path / "app" / "federation" / "apps.py").write_text(MISBEHAVING)
    changes = {"algorithm": "fedfw+", "constraint": "l2:10", "momentum": 0.9, "rounds": 20}
    config = merge(BASE, changes, "test")
    demo, out = Demo.of(config), tmp_path / "out"
    with LocalFederation(tmp_path / "federation", 3) as federation:
        process = deploy(federation, tmp_path / "app", demo, out, round_timeout=25.0, leave_after=0)
        wait_until(lambda: len(records(out)) >= 3, "three rounds")
        federation.kill("client-2")
        if disk == "without its disk":
            for file in (federation.folder / "state").glob("*/client-2.safetensors"):
                file.unlink()
        supervise(federation, 2, lambda: not federation.running(process))
        history = finished(federation, process, out)
    assert len(history) == 20
    assert history[-1].participants >= 2
    reasons = {reason for record in history for reason in record.refused}
    assert "bad atom" in reasons
    if disk == "without its disk":
        assert any(record.restored == [2] for record in history)
    check_invariants(history, tmp_path / "federation")


@pytest.mark.faults
def test_a_server_that_is_killed_and_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    copy_app(tmp_path / "app")
    demo = Demo.of(
        merge(BASE, {"algorithm": "fedfw+", "constraint": "nuclear:10", "rounds": 8}, "test")
    )
    out = tmp_path / "out"
    with LocalFederation(tmp_path / "federation", 3) as federation:
        deploy(federation, tmp_path / "app", demo, out)
        wait_until(lambda: len(records(out)) >= 3, "three rounds")
        federation.kill("superexec")  # with it ends the ServerApp
        federation.kill("superlink")
        assert not (out / "done.json").exists()
        federation.start_superlink()
        process = deploy(federation, tmp_path / "app", demo, out, resume=True)
        history = finished(federation, process, out)
    assert [record.participants for record in history] == [3] * 8
    assert history[-1].digest == digest(demo.simulated.x).hex()
    check_invariants(history, tmp_path / "federation")


# --- A new user's first two commands, over real processes. Run by ``bash
# scripts/test-deployment.sh`` ---


@pytest.mark.deployment
def test_an_app_of_ones_own_runs_here(tmp_path: Path) -> None:
    def fedfw(*arguments: str) -> str:
        command = [sys.executable, "-m", "fedfw", "deploy", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        return done.stdout

    fedfw("init", "mine")
    project = tmp_path / "mine" / "pyproject.toml"
    text = (
        project.read_text()
        .replace("clients = 3", "clients = 2")
        .replace("rounds = 5", "rounds = 2")
    )
    project.write_text(text.replace('constraint = "ksparse:k=65,r=10"', 'constraint = "l2:3"'))
    task = tmp_path / "mine" / "federation" / "task.py"
    task.write_text(
        task.read_text().replace("parts[client]", "parts[client][:100]")
    )  # samples of his own
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}

    printed = fedfw("demo", "--app", "mine", "--out", "results")
    assert "on the set L2Ball(r=3): 650 parameters, 2 clients, 2 rounds" in printed
    for what in ("bits", "bytes"):
        assert re.search(rf"^{what} of the simulator +yes$", printed, re.M), what
    assert "results/fedfw" in printed
    history = (tmp_path / "results" / "fedfw" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["participants"] for line in history] == [2, 2]
    assert (tmp_path / "results" / "fedfw" / "model.pt").is_file()
    after = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    assert before == after
