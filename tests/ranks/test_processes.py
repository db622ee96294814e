"""How a rank notices that another process of its machine ended."""

from __future__ import annotations

import os
import subprocess
import sys

from fedfw.ranks.joined import has_ended, process_namespace


def test_a_process_that_ended_is_seen_before_anybody_asks_for_its_status() -> None:
    assert not has_ended(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not has_ended(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(child.pid)  # it is still in the table of processes
    finally:
        child.communicate()
    assert has_ended(child.pid)


def test_processes_of_one_machine_share_a_namespace() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "from fedfw.ranks.joined import process_namespace; print(process_namespace())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(process_namespace())
