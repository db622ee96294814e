"""The executor that forks: what it asks for, what the template does with it, and what nobody else gets to see."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus

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


def test_a_clients_task_goes_to_the_template_and_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **options: pytest.fail(f"started {words}"))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert ForkingExecutor(ours).launch(spec()).status is LaunchResultStatus.ACCEPTED
        asked = json.loads(theirs.recv(2**16))
    assert asked["token"] == TOKEN
    assert asked["parent_pid"] == os.getpid()
    assert set(asked) == {"runtime_api_address", "token", "insecure", "root_certificates_path", "parent_pid"}


@pytest.mark.parametrize("other", [spec(TaskType.SERVER_APP), spec(runtime_dependency_install=True)])
def test_other_tasks_are_started_as_flower_does_it(other: ExecutionSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **options: started.append(words))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert ForkingExecutor(ours).launch(other).status is LaunchResultStatus.ACCEPTED
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
    assert len(started) == 1


def test_a_template_that_is_gone_is_a_failed_launch() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with ours:
        result = ForkingExecutor(ours).launch(spec())
    assert result.status is LaunchResultStatus.FAILED
    assert "is gone" in str(result.message)
    assert TOKEN not in str(result.message)


TEMPLATE = """
import json, os, socket, sys
from fedfw.deployment.flower import executor

def run_clientapp(**asked):
    shown = asked["token"] in open("/proc/self/cmdline").read()
    kept = {"torch": "torch" in sys.modules, "threads": len(os.listdir("/proc/self/task")), "shown": shown, **asked}
    with open(f"{sys.argv[1]}/{asked['token']}.part", "w") as file:
        json.dump(kept, file)
    os.rename(file.name, file.name.removesuffix(".part"))
    raise SystemExit(3 if asked["token"] == "bad" else 0)

executor.run_clientapp = run_clientapp
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
template = os.fork()
if template == 0:
    ours.close()
    executor._be_template(theirs)
theirs.close()
forking = executor.ForkingExecutor(ours)
from tests.deployment.flower.test_executor import spec
for token in ("bad", "first", "second"):
    assert forking.launch(spec(token=token)).status == "accepted"
forking.close()
ended, status = os.waitpid(template, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_every_task_has_a_process_that_is_forked_from_the_template(tmp_path: Path) -> None:
    done = start_python(["-c", TEMPLATE, tmp_path]).wait()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"  # it ended because nobody was left to ask, and not by the client that failed
    for token in ("bad", "first", "second"):
        kept = json.loads(wait_for(tmp_path / token))
        assert kept["token"] == token
        assert kept["torch"]
        assert kept["threads"] == 1
        assert not kept["shown"]
        assert kept["insecure"] is True
        assert kept["certificates"] is None


def wait_for(path: Path) -> str:
    """What a process that nobody waits for has written."""
    while not path.exists():
        os.sched_yield()
    return path.read_text()
