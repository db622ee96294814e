"""A whole Flower federation on this machine, with keys, signatures and secrets as in
docs/deployment.md.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomlkit

from fedfw.deployment.consent import ALL_SETS, CONSENT, SHARES, Consent
from fedfw.deployment.flower.bundles import Bundle, read_signing_key, trust_line
from fedfw.deployment.flower.keys import (
    make_certificates,
    make_node_key,
    make_secret,
    make_signing_key,
)
from fedfw.deployment.flower.proxy import Address, ProxySettings, proxy_command, write_config
from fedfw.deployment.server_options import DATA_OPTIONS, SEED, settings_in, usual_options
from fedfw.rounds.files import make_private_folder, owner_only
from fedfw.terminal import escape_controls, without_colours

HOST = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""What everything that we start has in its environment: nothing is reported, looked up or
installed.
"""
_COPIES_VERSION = "0.0"
"""Begins the version of a copy of an app, each of which is signed as another one."""
_PATIENCE = 60.0  # seconds for a server to come up, and for processes to end by themselves
_CONNECTION = "fedfw"  # name of the SuperLink in Flower's configuration
_FEDFW = (sys.executable, "-m", "fedfw", "deploy")
_SERVER = (
    "nginx",
    "haproxy",
    "superexec",
    "hub",
    "superlink",
)  # in the order in which they end, after the nodes

OPEN = Consent(
    share=SHARES,
    sets=(ALL_SETS,),
    options=(*usual_options(), SEED),
    least_samples=1,
    most_local_steps=100_000,
    most_rounds=1_000_000_000,
)
"""What the owners allow of a federation that is one person's, whose nodes end with the run."""


class FederationError(RuntimeError):
    """A process of the federation failed; the message has the end of its log."""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class LocalFederation:
    """Processes on 127.0.0.1; a context manager that ends all that it started.

    The SuperLink, with an executor and a hub of signed bundles beside it, talks to this machine
    alone, and so do its nodes. They run nothing but bundles that were signed with the key
    ``keys/signing``.

    Parameters
    ----------
    folder
        For certificates, keys, logs and the clients' memory.
    clients
        SuperNodes to start, with ``partition-id`` 0, 1, ...
    consent
        What the nodes allow; each has a file of its own, with a data set and a ledger of its own.
    proxies
        Programs in front of the SuperLink, "nginx" or "haproxy", which must be installed; nodes
        take them in turn. Without any, nodes reach the SuperLink itself, which nothing outside of
        this machine does.

    Attributes
    ----------
    addresses : list of str
        Where nodes reach the federation: of each proxy, or of the SuperLink.
    names : list of str
        Of the processes that it consists of.
    tell : callable
        Is given the name of each process that was started.
    """

    def __init__(
        self,
        folder: Path,
        clients: int,
        consent: Consent = OPEN,
        proxies: Sequence[str] = (),
    ) -> None:
        self.folder, self.clients = folder.absolute(), clients
        self.consent = consent
        self.port, self._hub = free_port(), free_port()
        self._proxies = {program: free_port() for program in proxies}
        self.addresses = [f"{HOST}:{port}" for port in self._proxies.values() or [self.port]]
        nodes = [f"client-{client}" for client in range(clients)]
        self.names = [*proxies, "superexec", "hub", "superlink", *nodes]
        self.tell: Callable[[str], object] = lambda name: None
        self._copies = 0  # of apps
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._executors: dict[
            str, subprocess.Popen[bytes]
        ] = {}  # those of nodes, in the groups of these
        self._environment = (
            os.environ
            | QUIET
            | {
                "FLWR_HOME": str(self.folder / "flwr"),
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
                "FLWR_SUPERGRID_API_URL": f"http://{HOST}:{self._hub}/v1",
                "OMP_NUM_THREADS": "1",
                "FEDFW_STATE": str(self.folder / "state"),
                "FEDFW_CONSENT": "",
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            }
        )

    # --- beginning and end ---

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def _set_up(self) -> None:
        keys, home = self.folder / "keys", self.folder / "flwr"
        make_private_folder(self.folder)  # logs, Flower's database and the clients' memory
        make_certificates(keys)
        make_secret(keys / "superexec.secret")
        make_signing_key(keys / "signing")
        public = read_signing_key(keys / "signing").public_key()
        (keys / "trusted-entities.yaml").write_text(f"{trust_line(public)}\n")
        (self.folder / "bundles").mkdir(exist_ok=True)
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\n'
            f'address = "{HOST}:{self.port}"\nroot-certificates = "{keys / "ca.crt"}"\n'
        )
        self.start(
            "hub", *_FEDFW, "hub", str(self.folder / "bundles"), "--listen", f"{HOST}:{self._hub}"
        )
        for program, port in self._proxies.items():
            self._start_proxy(program, port)
        self.start_superlink()
        for name, port in (("hub", self._hub), *self._proxies.items()):
            self._wait_for(name, port)
        for client in range(self.clients):
            self.register(client)
            self.start_node(client)

    def start_superlink(self) -> None:
        """The server's process, and the one that runs its apps; its database outlives them."""
        keys = self.folder / "keys"
        secret = ("--superexec-auth-secret-file", str(keys / "superexec.secret"))
        self.start(
            "superlink",
            *("flower-superlink", "--host", HOST, "--port", str(self.port)),
            *(
                "--ssl-ca-certfile",
                str(keys / "ca.crt"),
                "--ssl-certfile",
                str(keys / "server.pem"),
            ),
            *(
                "--ssl-keyfile",
                str(keys / "server.key"),
                "--database",
                str(self.folder / "superlink.db"),
            ),
            *("--enable-supernode-auth", "--isolation", "process", *secret),
        )
        self._wait_for("superlink", self.port)
        where = (
            "--runtime-api-address",
            f"{HOST}:{self.port}",
            "--root-certificates",
            str(keys / "ca.crt"),
        )
        self.start("superexec", "flower-superexec", *where, *secret)

    def _start_proxy(self, program: str, port: int) -> None:
        """Start nginx or HAProxy in front of the SuperLink, by the configuration that
        `write_config` writes.
        """
        keys, work = self.folder / "keys", self.folder / program
        work.mkdir(mode=0o700)
        (keys / "server.pem.key").unlink(missing_ok=True)
        (keys / "server.pem.key").symlink_to("server.key")  # where HAProxy looks for it
        settings = ProxySettings(
            listen=Address(HOST, port),
            superlink=Address(HOST, self.port),
            certificate=keys / "server.pem",
            key=keys / "server.key",
            ca=keys / "ca.crt",
            work_dir=work,
        )
        config = work / "config"
        config.write_text(write_config(program, settings))
        self.start(program, *proxy_command(program, config))

    def _wait_for(self, name: str, port: int) -> None:
        """Until a server of ours listens."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and self.running(name):
            with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                return
            time.sleep(0.1)
        raise FederationError(f"the {name} did not start:\n{self.log(name)}")

    def register(self, client: int) -> None:
        """Make a client's key and register it at the SuperLink."""
        path = self.folder / "keys" / f"client-{client}"
        make_node_key(path)
        self.flwr("supernode", "register", f"{path}.pub", _CONNECTION)

    def start_node(self, client: int, key: Path | None = None, settings: str = "") -> str:
        """A client's SuperNode, with another key or without one if asked for; returns the name of
        its process.

        Its executor is in the same group of processes, and ends with it.
        """
        name, port = f"client-{client}", str(free_port())
        if name in self._processes:
            self.kill(name)  # one that runs, or what is left of one that has ended
        secret = ("--superexec-auth-secret-file", str(self.folder / "keys" / "superexec.secret"))
        key = key or self.folder / "keys" / name
        consent = self.folder / "consent" / name / CONSENT
        if not consent.exists():
            replace(self.consent, data_set=name).write(consent.parent)
        closed = (*_FEDFW, "node", "--auth-supernode-private-key", str(key))
        keyless = (
            "flower-supernode",
            "--isolation",
            "process",
        )  # 'fedfw deploy node' does not run without a key
        self.start(
            name,
            *(closed if key.is_file() else keyless),
            *("--superlink", self.addresses[client % len(self.addresses)]),
            *("--host", HOST, "--port", port, *secret),
            *("--root-certificates", str(self.folder / "keys" / "ca.crt")),
            *("--trusted-entities", str(self.folder / "keys" / "trusted-entities.yaml")),
            *("--node-config", f'partition-id={client} consent="{consent}" {settings}'.strip()),
        )
        node = self._processes[name].pid
        where = ("--runtime-api-address", f"{HOST}:{port}", "--parent-pid", str(node))
        self._executors[name] = self._open(name, *_FEDFW, "executor", *where, *secret, group=node)
        return name

    def start(self, name: str, *command: str) -> None:
        """A process in a group of its own, so that what it starts ends with it."""
        self._processes[name] = self._open(name, *command, group=0)
        self.tell(name)

    def _open(self, name: str, *command: str, group: int) -> subprocess.Popen[bytes]:
        """A process that writes to the log of this name."""
        with open(self.folder / f"{name}.log", "ab", opener=owner_only) as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.folder,
                process_group=group,
            )

    def kill(self, name: str) -> None:
        """End a process and its children at once."""
        self._end(name, signal.SIGKILL)

    def running(self, name: str) -> bool:
        """Whether a process, and the executor of a node, has not ended."""
        process = self._processes[name]
        return all(one.poll() is None for one in (process, self._executors.get(name, process)))

    def stop(self) -> None:
        """End everything that was started, the server's side last; not to be interrupted."""
        ignored = {}
        with suppress(ValueError):  # only the main thread has handlers
            ignored = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
        for name in sorted(
            self._processes, key=lambda name: _SERVER.index(name) if name in _SERVER else -1
        ):
            self._end(name, signal.SIGTERM)
        for number, handler in ignored.items():
            signal.signal(number, handler)

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):  # children that outlived it
            os.killpg(process.pid, signal.SIGKILL)
        for one in (process, self._executors.pop(name, process)):
            one.wait()

    # --- runs ---

    def submit(self, app: Path, config: Mapping[str, Any], name: str = "run") -> str:
        """Sign an app, start a run of it and follow its log; returns the name of the process that
        follows.

        Options that no server may set are written into a copy of the app, which is what is signed.
        """
        usual = settings_in(app) or {}
        own = {key: value for key, value in config.items() if key in DATA_OPTIONS}
        config = {key: value for key, value in config.items() if key not in own}
        app = self._with_settings(
            app, {key: value for key, value in own.items() if usual.get(key) != value}
        )
        bundle = Bundle.read(app)
        bundle.sign(read_signing_key(self.folder / "keys" / "signing"), self.folder / "bundles")
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        self.start(
            name, "flwr", "run", bundle.spec, _CONNECTION, "--stream", "--run-config", settings
        )
        return name

    def _with_settings(self, app: Path, settings: Mapping[str, Any]) -> Path:
        """A copy of an app that has other values of some options and a version of its own."""
        if not settings:
            return app
        self._copies += 1
        copy = self.folder / "apps" / str(self._copies)
        shutil.copytree(app, copy, ignore=shutil.ignore_patterns("__pycache__", "runs"))
        path = copy / "pyproject.toml"
        project = tomlkit.parse(path.read_text(encoding="utf-8"))
        table = project["tool"]["flwr"]["app"]["config"]
        for key, value in settings.items():
            table[key] = value
        project["project"]["version"] = f"{_COPIES_VERSION}.{self._copies}"
        path.write_text(tomlkit.dumps(project), encoding="utf-8")
        return copy

    def traffic(self) -> list[dict[str, Any]]:
        """Flower's own account of its runs, newest first."""
        listed: dict[str, Any] = json.loads(self.flwr("list", _CONNECTION, "--format", "json"))
        runs: list[dict[str, Any]] = listed["runs"]
        return runs

    def flwr(self, *arguments: str) -> str:
        """Flower's command line."""
        # In a folder of ours: Flower takes the name of a connection for an app if there is a folder
        # of that name.
        done = subprocess.run(
            ["flwr", *arguments],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise FederationError(f"flwr {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def log(self, name: str, lines: int = 20) -> str:
        """The end of a process's log."""
        text = without_colours((self.folder / f"{name}.log").read_text(errors="replace"))
        return "\n".join(escape_controls(line) for line in text.splitlines()[-lines:])
