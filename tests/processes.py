"""Python processes for tests, without the seconds in which each would import torch and Matplotlib.

One process a test worker has them and fedfw imported; it forks whenever a test wants a process, and
the fork runs what ``python ARGUMENTS`` would run: an own process with its own number, folder locks,
signals, output and exit status. What is about the start of the interpreter itself, or about what is
imported, belongs into ``subprocess``.
"""

import atexit
import builtins
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PRELOADED = (
    "import matplotlib.pyplot, torch, fedfw, fedfw.cli.run, fedfw.deployment.client, fedfw.deployment.server, "
    "fedfw.report.plots, fedfw.simulation; fedfw.FedFW"
)
NETWORKS = ("torch._dynamo",)
"""What torch imports with the first gradient of a network, in two seconds: for processes that train
one.
"""


@dataclass(frozen=True)
class Started:
    """A process that runs; what it prints is in ``said`` once it ended."""

    pid: int
    _status: socket.socket
    _output: tuple[int, int]

    def wait(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Its exit status and what it printed; one that does not end in time is killed."""
        self._status.settimeout(timeout)
        try:
            status = int(self._status.recv(32))
        except TimeoutError:
            self.kill()
            self._status.settimeout(60)
            status = int(self._status.recv(32))
        self._status.close()
        said = []
        for output in self._output:
            with open(output, encoding="utf-8") as file:
                file.seek(0)
                said.append(file.read())
        return subprocess.CompletedProcess([], status, *said)

    def ended(self) -> bool:
        """Whether it ended by itself or was killed."""
        try:
            return bool(self._status.recv(32, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False

    def kill(self) -> None:
        """End it as the system does that runs out of memory."""
        os.kill(self.pid, 9)


def start_python(
    arguments: Sequence[Any],
    env: Mapping[str, str] | None = None,
    together: bool = False,
    loaded: Sequence[str] = (),
) -> Started:
    """``python ARGUMENTS`` with these additions to the environment; ``together`` has errors among
    what is printed.

    What is ``loaded`` is imported already, in this process and in all that come later, and only
    once for all of them.
    """
    ours, theirs = socket.socketpair()
    asked = {
        "arguments": list(map(str, arguments)),
        "env": {**os.environ, **(env or {})},
        "cwd": os.getcwd(),
    }
    asked["loaded"] = list(loaded)
    outputs = [os.memfd_create(name) for name in ("output", "errors")]
    request = json.dumps(asked).encode()
    server = _server()
    given = [theirs.fileno(), outputs[0], outputs[0] if together else outputs[1]]
    socket.send_fds(server, [len(request).to_bytes(8, "big")], given)
    server.sendall(request)
    theirs.close()
    return Started(int(ours.recv(32)), ours, (outputs[0], outputs[1]))


def run_python(
    arguments: Sequence[Any],
    env: Mapping[str, str] | None = None,
    check: bool = True,
    loaded: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """What ``python ARGUMENTS`` ended with; with ``check`` it has to end well."""
    done = start_python(arguments, env, loaded=loaded).wait()
    assert not check or done.returncode == 0, done.stderr
    return done


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair()
    env = os.environ | {
        "PYTHONHASHSEED": "7",  # another order of sets than here
        "MPLBACKEND": "Agg",  # nobody looks at windows
        "OMP_NUM_THREADS": "1",  # more threads than cores would wait for each other
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, sys.path)]),
    }
    code = f"{PRELOADED}; import tests.processes as p; p.end_with(p.serve({theirs.fileno()}))"
    process = subprocess.Popen([sys.executable, "-c", code], env=env, pass_fds=[theirs.fileno()])
    theirs.close()

    def stop() -> None:
        ours.close()  # which is what it waits for
        process.wait()

    atexit.register(stop)
    return ours


def serve(number: int) -> dict[str, Any]:
    """Fork for every request, of which this is what the fork is to do; the server itself ends in
    here.
    """
    requests = socket.socket(fileno=number)
    while True:
        # what is imported stays: forks would look through it, and copy it, again and again
        gc.freeze()
        head, given, _, _ = socket.recv_fds(requests, 8, 3)
        if not head:
            os._exit(0)
        left, request = int.from_bytes(head, "big"), b""
        while len(request) < left:
            request += requests.recv(left - len(request))
        found: dict[str, Any] = json.loads(request)
        for name in found["loaded"]:
            import_module(name)
        if os.fork():
            for one in given:
                os.close(one)
            _reap()
            continue
        requests.close()
        status = socket.socket(fileno=given[0])
        child = os.fork()
        if child:  # the nanny stays to say how it ended
            status.sendall(str(child).encode())
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            status.sendall(str(ended).encode())
            os._exit(0)
        status.detach()
        os.close(given[0])
        with open(os.devnull) as nothing:
            for source, target in ((nothing.fileno(), 0), (given[1], 1), (given[2], 2)):
                os.dup2(source, target)
        for one in set(given[1:]):
            os.close(one)
        return found


def _reap() -> None:
    """Nannies that are done."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def end_with(asked: dict[str, Any]) -> None:
    """Run what was asked for and end as Python does, but without taking down what the server has
    imported.
    """
    status: Any = 0
    try:
        _run(asked)
    except SystemExit as end:
        status = end.code
        if status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status or 0)


def _run(asked: dict[str, Any]) -> None:
    """Be ``python ARGUMENTS``."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    arguments = asked["arguments"]
    sys.path[:0] = [one for one in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if one]
    while arguments[0] == "-W":
        action, _, category, module = arguments[1].split(":")
        warnings.filterwarnings(action, category=getattr(builtins, category), module=module)  # type: ignore[arg-type]
        arguments = arguments[2:]
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")
