"""What one operating system lacks is done without: the library is imported and used all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedfw import portable

WITHOUT = """
import asyncio, os, sys  # asyncio for the system that runs the test, which it asks of os
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("fchmod", "geteuid", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "sysconf", "fork"):
    if hasattr(os, name):
        delattr(os, name)
"""
IMPORTED = """
import importlib, pkgutil, signal
for name in ("getuid", "killpg", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGALRM", "SIGCHLD", "SIGKILL", "setitimer", "ITIMER_REAL"):
    if hasattr(signal, name):
        delattr(signal, name)
import fedfw
count = 0
for module in pkgutil.walk_packages(fedfw.__path__, "fedfw."):
    if module.name != "fedfw.__main__" and ".template" not in module.name:
        importlib.import_module(module.name)
        count += 1
print(count)
"""
USED = """
import fedfw, fedfw.deployment, fedfw.cli.run
from fedfw import portable
folder = sys.argv[1] + "/run"
problem = fedfw.testing.two_quadratics()
method = fedfw.FedFWPlus("box:-1,1", penalty=1.0)
fedfw.simulate(problem, method, rounds=3, out=folder)
run = fedfw.simulate(problem, method, rounds=5, out=folder, resume=True)
print(len(run.history), portable.LOCKS, portable.MEMORY_LIMITS)
"""


def test_runs_work_without_the_modules_of_posix(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT + USED, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["5", "False", "False"]


def test_every_module_is_imported_without_the_modules_of_posix() -> None:
    pytest.importorskip("flwr")
    command = [sys.executable, "-c", WITHOUT + IMPORTED]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ended.stdout) > 200


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with open(path, "w") as first, open(path, "w") as second:
        assert portable.try_lock(first.fileno())
        assert not portable.try_lock(second.fileno())


def test_memory_is_limited_within_the_context() -> None:
    with portable.limited_memory(2**20):
        try:
            bytearray(2**30)
        except MemoryError:
            ended = True
        else:
            ended = False
    assert ended
    assert len(bytearray(2**24)) == 2**24
