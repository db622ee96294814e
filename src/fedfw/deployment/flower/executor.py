"""Flower's executor with processes that need not begin by importing torch.

Flower runs an app in a process of its own for every message, which is three to four seconds of imports. Here those
processes are forked from one that has done them: the *template*, which itself runs no app, starts no thread and knows
no secret. A forked process does what ``flwr-clientapp`` does, and ends with its message. It is told its token by a
socket, where Flower's own executor writes it into the arguments of a process, which everybody on the machine can read.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor, factory
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

_PRELOADED = ("fedfw.deployment.flower.apps", "fedfw.presets", "sklearn.datasets", "torch.func")
_LONGEST = 2**16
"""Bytes of a request."""
_ASKED = ("runtime_api_address", "token", "insecure", "root_certificates_path", "parent_pid")


@dataclass
class ForkingExecutor(SubprocessExecutor):
    """Has clients' processes forked by the template; others are started as Flower does it.

    Parameters
    ----------
    template : socket
        Of datagrams, at whose other end the template listens.
    """

    template: socket.socket

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process for a message."""
        if spec.task_type is not TaskType.CLIENT_APP or spec.runtime_dependency_install:
            return super().launch(spec)
        try:
            self.template.send(json.dumps({name: getattr(spec, name) for name in _ASKED}).encode())
        except OSError as error:
            return LaunchResult.failed(f"the process that others are forked from is gone: {error}")
        return LaunchResult.accepted()

    def close(self) -> None:
        """Let the template end."""
        self.template.close()


def run_executor(arguments: Sequence[str]) -> None:
    """What ``flower-superexec ARGUMENTS`` does, until the process is ended; its clients' processes are forked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:  # before Flower starts threads, which a fork would not have
        ours.close()
        _be_template(theirs)
    theirs.close()
    vars(factory)["SubprocessExecutor"] = lambda: ForkingExecutor(ours)  # Flower has no option for other kinds
    sys.argv = ["flower-superexec", *arguments]
    flower_superexec()


def _be_template(requests: socket.socket) -> None:
    """Import what clients need, then fork for every request; ends when nobody is left to ask."""
    status = 1
    try:
        for name in _PRELOADED:
            import_module(name)

        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that end
        while request := requests.recv(_LONGEST):
            if os.fork() == 0:
                requests.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _be_client(**json.loads(request))
        status = 0
    except KeyboardInterrupt:
        status = 0
    finally:
        _end(status)


def _be_client(root_certificates_path: str | None, **asked: Any) -> None:
    """Be ``flwr-clientapp``."""
    status: Any = 1
    try:
        certificates = validate_and_resolve_root_certificates(root_certificates_path, asked["insecure"])
        run_clientapp(certificates=certificates, runtime_dependency_install=False, **asked)
        status = 0
    except SystemExit as end:  # by which Flower ends it
        status = end.code
    finally:
        _end(status if isinstance(status, int) else int(status is not None))


def _end(status: int) -> None:
    """End a forked process: what its parent would do at its end is not for it."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
