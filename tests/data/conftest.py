"""Readers of files without a process for each of them."""

import io
import sys
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import pytest

from fedfw.data import _reader, limits


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the readers of `_reader.py` run here, without a limit: hundreds of processes would take
    minutes.
    """

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        said, status = io.StringIO(), 0
        with monkeypatch.context() as patched, redirect_stdout(said):
            patched.setattr(sys, "argv", command[2:])
            patched.setattr(_reader, "limit_memory", lambda: None)
            try:
                _reader.main()
            except SystemExit as ended:
                status = int(str(ended.code))
        return SimpleNamespace(returncode=status, stdout=said.getvalue())

    monkeypatch.setattr(limits.subprocess, "run", run)
