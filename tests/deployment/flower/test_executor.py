"""The executor that forks: what it asks for, what the template does with it, and what nobody else
gets to see.
"""

import hashlib
import inspect
import json
import os
import socket
import subprocess
import time
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import (
    ExecutionSpec,
    LaunchResult,
    LaunchResultStatus,
    SubprocessExecutor,
    factory,
)
from flwr.supercore.superexec.plugin.base_exec_plugin import AutoExecPlugin, BaseExecPlugin
from flwr.supercore.superexec.run_superexec import run_superexec
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supercore.utils import disable_process_dumping
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedfw.cli.main import main
from fedfw.deployment.flower.executor import ForkingExecutor
from tests.processes import start_python

TOKEN = "a-token-that-nobody-else-may-see"


def spec(kind: TaskType = TaskType.CLIENT_APP, **changed: Any) -> ExecutionSpec:
    usual: dict[str, Any] = {
        "task_type": kind,
        "runtime_api_address": "127.0.0.1:9",
        "token": TOKEN,
        "insecure": True,
        "root_certificates_path": None,
        "runtime_dependency_install": False,
        "parent_pid": os.getpid(),
        "suppress_output": False,
        "task_id": 7,
    }
    return ExecutionSpec(**usual | changed)


def test_a_clients_task_goes_to_the_template_and_starts_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        subprocess, "Popen", lambda *words, **options: pytest.fail(f"started {words}")
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert ForkingExecutor(ours).launch(spec()).status is LaunchResultStatus.ACCEPTED
        asked = json.loads(theirs.recv(2**16))
    assert asked["token"] == TOKEN
    assert asked["parent_pid"] == os.getpid()
    assert set(asked) == {
        "runtime_api_address",
        "token",
        "insecure",
        "root_certificates_path",
        "parent_pid",
    }


@pytest.mark.parametrize(
    "other", [spec(TaskType.SERVER_APP), spec(runtime_dependency_install=True)]
)
def test_other_tasks_are_started_as_flower_does_it(
    other: ExecutionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **options: started.append(words))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert ForkingExecutor(ours).launch(other).status is LaunchResultStatus.ACCEPTED
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
    assert len(started) == 1


def test_without_a_template_the_executor_ends_before_it_takes_a_message() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forking = ForkingExecutor(ours)
    forking.reconcile()
    theirs.close()
    with ours:
        with pytest.raises(SystemExit, match=r"has ended.* Start the executor again\.$"):
            forking.reconcile()
        with pytest.raises(
            SystemExit, match="Message 7 is lost"
        ) as end:  # it ended just after that
            forking.launch(spec())
    assert TOKEN not in str(end.value)


@pytest.mark.parametrize("address", ["192.0.2.7:9094", "node.example:9094", "[2001:db8::1]:9094"])
def test_no_token_travels_in_the_clear(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--runtime-api-address", address, "--superexec-auth-secret-file", "secret"]
    assert main(["deploy", "executor", *words]) == 2
    assert f"--runtime-api-address {address} without --root-certificates" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1:9094", "localhost:9094", "[::1]:9094"])
def test_an_executor_on_the_nodes_host_needs_no_certificates(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(
        "fedfw.deployment.flower.executor.run_executor", lambda words, wait: asked.append(words)
    )
    (tmp_path / "secret").write_text("42")
    words = [
        "--runtime-api-address",
        address,
        "--superexec-auth-secret-file",
        str(tmp_path / "secret"),
    ]
    assert main(["deploy", "executor", *words]) == 0
    assert asked == [[*words, "--insecure"]]


def test_a_request_that_the_template_would_not_read_whole_is_refused() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        result = ForkingExecutor(ours).launch(spec(token=70_000 * "t"))
    assert result.status is LaunchResultStatus.FAILED
    assert "bytes, expected at most 65536" in str(result.message)


TEMPLATE = """
import atexit, ctypes, json, os, re, socket, sys
import numpy as np, torch
from fedfw.deployment.flower import executor

def run_clientapp(**asked):
    preloaded = "sklearn.datasets" in sys.modules
    drawn = [torch.rand(1).item(), np.random.rand()]
    shown = asked["token"] in open("/proc/self/cmdline").read()
    threads = len(os.listdir(f"/proc/{os.getppid()}/task"))  # of the template: a fork would lack all but one
    kept = {"preloaded": preloaded, "threads": threads, "shown": shown, "drawn": drawn}
    kept["private"] = prctl(3, 0, 0, 0, 0) == 0
    prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: a private process of anybody but root cannot look into itself either
    kept |= asked | {"others": strangers(asked["token"])}
    atexit.register(open(f"{sys.argv[1]}/{asked['token']}.end", "w").close)
    with open(f"{sys.argv[1]}/{asked['token']}.part", "w") as file:
        json.dump(kept, file)
    os.rename(file.name, file.name.removesuffix(".part"))
    raise SystemExit(3 if asked["token"] == "bad" else 0)

def strangers(own):  # tokens of others that are in this process's memory
    found = set()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            begin, end = (int(one, 16) for one in line.split()[0].split("-"))
            if line.split()[1].startswith("rw") and end - begin < 2**28:
                try:
                    memory.seek(begin)
                    found |= {one.decode() for one in re.findall(rb'"token": "([a-z]+)"', memory.read(end - begin))}
                except OSError:
                    pass
    return sorted(found - {own})

prctl = ctypes.CDLL(None).prctl
executor.run_clientapp = run_clientapp
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
template = os.fork()
if template == 0:
    atexit.register(lambda: open(f"{sys.argv[1]}/ends", "a").write("."))
    ours.close()
    executor._ending(executor._be_template, theirs)
theirs.close()
forking = executor.ForkingExecutor(ours)
from tests.deployment.flower.test_executor import spec
for token in ("bad", "first", "second", "last"):
    assert forking.launch(spec(token=token)).status == "accepted"
forking.close()
ended, status = os.waitpid(template, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_every_task_has_a_process_that_is_forked_from_the_template(tmp_path: Path) -> None:
    done = start_python(["-c", TEMPLATE, tmp_path]).wait()
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout == "0\n"
    )  # it ended because nobody was left to ask, and not by the client that failed
    tokens = ("bad", "first", "second", "last")
    kept = [json.loads(wait_for(tmp_path / token)) for token in tokens]
    assert [one["token"] for one in kept] == list(tokens)
    assert all(one["preloaded"] and one["threads"] == 1 for one in kept)
    assert not any(one["shown"] for one in kept)
    assert [one["others"] for one in kept] == 4 * [
        []
    ]  # nobody holds what was said to somebody else
    assert all(one["private"] for one in kept)  # nor can look into another process
    assert len({tuple(one["drawn"]) for one in kept}) == 4  # everybody draws numbers of his own
    assert all(one["insecure"] is True and one["certificates"] is None for one in kept)
    for token in tokens:
        wait_for(tmp_path / f"{token}.end")  # and ends as a process of Python does
    assert wait_for(tmp_path / "ends") == "."  # what the template does at its end it does once


def test_what_goes_wrong_in_a_fork_is_said(tmp_path: Path) -> None:
    code = "from fedfw.deployment.flower import executor; executor._ending(executor._be_client, 1, insecure=None)"
    done = start_python(["-c", code]).wait()
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    code = "from fedfw.deployment.flower import executor; import sys; executor._ending(sys.exit, 'a reason')"
    done = start_python(["-c", code]).wait()
    assert (done.returncode, done.stderr) == (1, "a reason\n")


def wait_for(path: Path) -> str:
    """What a process that nobody waits for has written."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"nothing was written to {path} in a minute"
        os.sched_yield()
    return path.read_text()


REPLACED = {
    # What ForkingExecutor takes the place of, and what calls it:
    factory.get_executor: "891abfc53747803d",
    SubprocessExecutor: "9c58435eb28cd789",
    ExecutionSpec: "a52aad6399c9a5ec",
    LaunchResult: "52068f09cea4222e",
    run_superexec: "d11f4e7fbc8f0b12",
    BaseExecPlugin: "687ebe55961326e8",
    AutoExecPlugin: "557f1a1c31898ee3",
    flower_superexec: "f0e2725c92a57597",
    # What a forked process is in place of:
    flwr_clientapp: "9e02b412fb895b05",
    run_clientapp: "6ce09559f3a2f5dc",
    validate_and_resolve_root_certificates: "bc209e39f3490726",
    disable_process_dumping: "983761019fe554fa",
}
"""Flower's internals that the executor replaces, with the first letters of the SHA-256 of their
source.
"""


def test_flowers_internals_are_those_that_the_executor_was_written_for() -> None:
    """After a change of Flower: read what differs, change executor.py where it must, run the
    deployment's tests, and then write the new digests here and the new version into pyproject.toml.
    """
    found = {
        thing: hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()[:16]
        for thing in REPLACED
    }
    assert found == REPLACED


def test_flower_is_pinned_to_the_version_of_these_internals() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    [pinned] = [
        one
        for one in pyproject["project"]["optional-dependencies"]["flower"]
        if one.startswith("flwr")
    ]
    assert pinned == f"flwr=={version('flwr')}"
