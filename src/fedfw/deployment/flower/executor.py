"""Flower's executor with processes that need not begin by importing torch.

Flower runs an app in a process of its own for every message, which is three to four seconds of
imports. Here those processes are forked from one that has done them: the *template*, which itself
runs no app and keeps no secret. A forked process does what ``flwr-clientapp`` does, and ends with
its message. It receives its token by a socket, where Flower's own executor writes it into the
arguments of a process, which every user of the machine can read.

`multiprocessing` has such a server of forks, too. It unpickles what it receives, can be looked into
by other processes of its user, and an executor that ends waits for its forks there.
"""

import atexit
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import numpy as np
import torch
from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import (
    ExecutionSpec,
    LaunchResult,
    SubprocessExecutor,
    factory,
)
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supercore.utils import disable_process_dumping
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedfw.deployment.flower.start import describe_error

_PRELOADED = ("fedfw.deployment.flower.apps", "fedfw.presets", "sklearn.datasets", "torch.func")
_LONGEST = 2**16
"""Bytes of a request."""
_GONE = (
    "the process that clients' processes are forked from has ended; what it printed last says why. "
    "Start the executor again."
)
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
        """Start the process for a message: by a fork of the template for a client's app whose
        packages are installed, else as Flower does it.
        """
        if spec.task_type is not TaskType.CLIENT_APP or spec.runtime_dependency_install:
            return super().launch(spec)
        request = json.dumps({name: getattr(spec, name) for name in _ASKED}).encode()
        if len(request) > _LONGEST:
            return LaunchResult.failed(
                f"a request of {len(request)} bytes, expected at most {_LONGEST}"
            )
        try:
            self.template.send(request)
        except OSError as error:
            raise SystemExit(f"{_GONE} Message {spec.task_id} is lost ({error}).") from None
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """End this process if the template has ended, so that no message is taken that no process
        can run; Flower calls this before it takes a message.
        """
        try:
            # The template sends nothing: only its end makes this socket readable.
            self.template.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:  # the connection is broken: the template has ended as well
            pass
        raise SystemExit(_GONE)

    def close(self) -> None:
        """Let the template end."""
        self.template.close()


def run_executor(arguments: Sequence[str], wait: Callable[[], None] = lambda: None) -> None:
    """Do what ``flower-superexec ARGUMENTS`` does, until the process is ended; its clients'
    processes are forked.

    Parameters
    ----------
    arguments : sequence of str
        As for Flower's command.
    wait : callable
        Called when the template has begun to import what clients need; returns when the SuperNode
        is there.

    Raises
    ------
    ConnectionError
        In place of whatever Flower raises.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:  # before Flower starts threads, which a fork would not have
        ours.close()
        _ending(_be_template, theirs)
    theirs.close()
    with ours:  # its end lets the template end
        wait()
        # Flower has no option for other kinds.
        vars(factory)["SubprocessExecutor"] = lambda: ForkingExecutor(ours)
        sys.argv = ["flower-superexec", *arguments]
        try:
            flower_superexec()
        except Exception as error:
            raise ConnectionError(f"the executor has ended: {describe_error(error)}") from None


def _be_template(requests: socket.socket) -> None:
    """Import what clients need, then fork for every request; ends when no executor is left."""
    disable_process_dumping(strict=False)  # no app may read the memory of this or another process
    for name in _PRELOADED:
        import_module(name)
    gc.freeze()  # what is imported stays: every fork would look through it, and so copy it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for those that end
    request = bytearray(_LONGEST)
    while length := requests.recv_into(request):
        try:
            forked = os.fork()
        except OSError as error:  # too many processes, or too little memory: the next may fit again
            print(f"a client's process could not be started: {error}", file=sys.stderr, flush=True)
            forked = -1
        if forked == 0:
            atexit._clear()  # what this process has to do at its end is not for its forks
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asked = json.loads(request[:length])
            request[:] = bytes(_LONGEST)
            _ending(_be_client, **asked)
        # A token is for its own process, and the next process begins as a copy of this one.
        request[:length] = bytes(length)


def _be_client(root_certificates_path: str | None, **asked: Any) -> None:
    """Be ``flwr-clientapp``."""
    torch.seed()  # a copied generator would give every message the same numbers
    np.random.seed()
    certificates = validate_and_resolve_root_certificates(root_certificates_path, asked["insecure"])
    run_clientapp(certificates=certificates, runtime_dependency_install=False, **asked)


def _ending(function: Callable[..., None], *arguments: Any, **options: Any) -> NoReturn:
    """Call a function in this process, which is a fork, and end the process with the status and
    the work of a normal end of Python; no caller of this function runs on.
    """
    # The status of a process that an error or an interrupt has ended.
    code: Any = 1
    try:
        function(*arguments, **options)
        code = 0
    except SystemExit as end:  # raised by Flower at the end of a client
        code = end.code
        # As in Python, anything but a number or None is a message, and the status is 1.
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
    try:
        # `os._exit` skips all of these steps of the interpreter's end: waiting for threads, exit
        # handlers, files that are still open, and the buffers of logs and streams.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        gc.collect()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code if isinstance(code, int) else int(code is not None))
