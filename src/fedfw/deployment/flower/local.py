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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import tomlkit

from fedfw.deployment.consent import CONSENT, Consent
from fedfw.deployment.flower.bundles import Bundle, read_signing_key, trust_line
from fedfw.deployment.flower.keys import (
    make_certificates,
    make_node_key,
    make_secret,
    make_signing_key,
)
from fedfw.deployment.flower.proxy import Address, ProxySettings, proxy_command, write_config
from fedfw.deployment.server_options import DATA_OPTIONS, SEED, default_options, settings_in
from fedfw.deployment.terms import ALL_SETS, SHARES
from fedfw.rounds.files import make_private_folder, owner_only
from fedfw.terminal import escape_controls, without_colours

HOST = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""The environment of all processes: nothing is reported, looked up or installed."""
_COPIES_VERSION = "0.0"
"""Begins the version of a copy of an app, each of which is signed as another one."""
_TIMEOUT = 60.0  # seconds for a server to come up
_CONNECTION = "fedfw"  # name of the SuperLink in Flower's configuration
_FEDFW = (sys.executable, "-m", "fedfw", "deploy")

OPEN = Consent(
    share=SHARES,
    sets=(ALL_SETS,),
    options=(*default_options(), SEED),
    least_samples=1,
    most_local_steps=100_000,
    most_rounds=1_000_000_000,
)
"""Consent of the owners of a federation that is one person's, whose nodes end with the run."""


class FederationError(RuntimeError):
    """A process of the federation failed; the message has the end of its log."""


def free_port() -> int:
    """Return a port at which no process listens."""
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
    """

    def __init__(
        self,
        folder: Path,
        clients: int,
        consent: Consent = OPEN,
        proxies: Sequence[str] = (),
    ) -> None:
        """Choose ports and names; nothing is started."""
        self.folder = folder.absolute()
        self.clients = clients
        self.consent = consent
        self.port = free_port()
        self._hub = free_port()
        self._proxies = {program: free_port() for program in proxies}
        # Where nodes connect: to the proxies, or without any to the SuperLink itself.
        self.addresses = [f"{HOST}:{port}" for port in self._proxies.values() or [self.port]]
        self._keys = self.folder / "keys"
        self._ca = str(self._keys / "ca.crt")
        self._secret = ("--superexec-auth-secret-file", str(self._keys / "superexec.secret"))
        self._copies = 0  # how many apps were copied and submitted
        self._processes: dict[str, subprocess.Popen[bytes]] = {}  # by name, as in the logs
        # The executors of nodes, each in the process group of its node.
        self._executors: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "FLWR_SUPERGRID_API_URL": f"http://{HOST}:{self._hub}/v1",
            "OMP_NUM_THREADS": "1",
            "FEDFW_STATE": str(self.folder / "state"),
            "FEDFW_CONSENT": "",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    # --- beginning and end ---

    def __enter__(self) -> Self:
        """Start all processes; if one fails, end the others."""
        try:
            self._set_up()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _set_up(self) -> None:
        """Make keys and settings, then start every process."""
        make_private_folder(self.folder)  # logs, Flower's database and the clients' memory
        make_certificates(self._keys)
        make_secret(self._keys / "superexec.secret")
        make_signing_key(self._keys / "signing")
        signing = read_signing_key(self._keys / "signing")
        (self._keys / "trusted-entities.yaml").write_text(f"{trust_line(signing.public_key())}\n")
        (self.folder / "bundles").mkdir(exist_ok=True)
        (self.folder / "flwr").mkdir(exist_ok=True)
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\n'
            f'address = "{HOST}:{self.port}"\nroot-certificates = "{self._ca}"\n'
        )
        hub = ("hub", str(self.folder / "bundles"), "--listen", f"{HOST}:{self._hub}")
        self.start("hub", *_FEDFW, *hub)
        for program, port in self._proxies.items():
            self._start_proxy(program, port)
        self.start_superlink()
        for name, port in (("hub", self._hub), *self._proxies.items()):
            self._wait_for(name, port)
        for client in range(self.clients):
            key = self._keys / f"client-{client}"
            make_node_key(key)
            self.flwr("supernode", "register", f"{key}.pub", _CONNECTION)
            self.start_node(client)

    def start_superlink(self) -> None:
        """Start the server's process, and the one that runs its apps; its database outlives
        them.
        """
        self.start(
            "superlink",
            *("flower-superlink", "--host", HOST, "--port", str(self.port)),
            *("--ssl-ca-certfile", self._ca),
            *("--ssl-certfile", str(self._keys / "server.pem")),
            *("--ssl-keyfile", str(self._keys / "server.key")),
            *("--database", str(self.folder / "superlink.db")),
            *("--enable-supernode-auth", "--isolation", "process", *self._secret),
        )
        self._wait_for("superlink", self.port)
        where = ("--runtime-api-address", f"{HOST}:{self.port}", "--root-certificates", self._ca)
        self.start("superexec", "flower-superexec", *where, *self._secret)

    def _start_proxy(self, program: str, port: int) -> None:
        """Start nginx or HAProxy in front of the SuperLink, by the configuration that
        `write_config` writes.
        """
        work = self.folder / program
        work.mkdir(mode=0o700)
        key = self._keys / "server.pem.key"  # where HAProxy looks for it
        key.unlink(missing_ok=True)
        key.symlink_to("server.key")
        settings = ProxySettings(
            listen=Address(HOST, port),
            superlink=Address(HOST, self.port),
            certificate=str(self._keys / "server.pem"),
            key=str(self._keys / "server.key"),
            ca=self._ca,
            work_dir=str(work),
        )
        (work / "config").write_text(write_config(program, settings))
        self.start(program, *proxy_command(program, work / "config"))

    def _wait_for(self, name: str, port: int) -> None:
        """Wait until a server of this federation listens."""
        until = time.monotonic() + _TIMEOUT
        while time.monotonic() < until and self.running(name):
            with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                return
            time.sleep(0.1)
        raise FederationError(f"the {name} did not start:\n{self.log(name)}")

    def start_node(self, client: int) -> str:
        """Start a client's SuperNode, without a key where there is no file of it; return the name
        of its process.

        Its executor is in the same group of processes, and ends with it.
        """
        name = f"client-{client}"
        port = str(free_port())
        if name in self._processes:
            self.kill(name)  # one that runs, or what is left of one that has ended
        consent = self.folder / "consent" / name / CONSENT
        if not consent.exists():
            replace(self.consent, data_set=name).write(consent.parent)
        key = self._keys / name
        command: tuple[str, ...] = (*_FEDFW, "node", "--auth-supernode-private-key", str(key))
        if not key.is_file():  # without a key 'fedfw deploy node' does not run
            command = ("flower-supernode", "--isolation", "process")
        self.start(
            name,
            *command,
            *("--superlink", self.addresses[client % len(self.addresses)]),
            *("--host", HOST, "--port", port, *self._secret),
            *("--root-certificates", self._ca),
            *("--trusted-entities", str(self._keys / "trusted-entities.yaml")),
            *("--node-config", f'partition-id={client} consent="{consent}"'),
        )
        node = self._processes[name].pid
        where = ("--runtime-api-address", f"{HOST}:{port}", "--parent-pid", str(node))
        executor = (*_FEDFW, "executor", *where, *self._secret)
        self._executors[name] = self._open(name, *executor, group=node)
        return name

    def start(self, name: str, *command: str) -> None:
        """Start a process in a group of its own, so that what it starts ends with it."""
        self._processes[name] = self._open(name, *command, group=0)

    def _open(self, name: str, *command: str, group: int) -> subprocess.Popen[bytes]:
        """Start a process that writes to the log of this name."""
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
        """Return whether a process, and the executor of a node, has not ended."""
        return all(process.poll() is None for process in self._started(name))

    def _started(self, name: str) -> list[subprocess.Popen[bytes]]:
        """Return a process, and the executor of a node."""
        return [started[name] for started in (self._processes, self._executors) if name in started]

    def require_running(self) -> None:
        """Raise `FederationError` where a process of the federation, not of a run, has ended."""
        for name in self._processes:
            if not name.startswith("run") and not self.running(name):
                which = f"{name} or its executor" if name in self._executors else name
                raise FederationError(f"{which} has ended before the run did:\n{self.log(name)}")

    def stop(self) -> None:
        """End all processes, those started last first; signals that would interrupt this are
        ignored meanwhile.
        """
        ignored = {}
        with suppress(ValueError):  # only the main thread has handlers
            ignored = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            for name in reversed(list(self._processes)):
                self._end(name, signal.SIGTERM)
        finally:
            for signum, handler in ignored.items():
                signal.signal(signum, handler)

    def _end(self, name: str, how: signal.Signals) -> None:
        """Send a signal to a process and its group, and kill what is still running after 10
        seconds.
        """
        started = self._started(name)
        group = started[0].pid
        with suppress(ProcessLookupError):
            os.killpg(group, how)
        with suppress(subprocess.TimeoutExpired):
            started[0].wait(10)
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        for process in started:
            process.wait()
        del self._processes[name]
        self._executors.pop(name, None)

    # --- runs ---

    def submit(self, app: Path, config: Mapping[str, Any], name: str = "run") -> str:
        """Sign an app, start a run of it and follow its log; return the name of the process that
        follows.

        Options that no server may set are written into a copy of the app, which is what is signed.
        """
        signed = settings_in(app) or {}
        data_settings = {key: value for key, value in config.items() if key in DATA_OPTIONS}
        if any(signed.get(key) != value for key, value in data_settings.items()):
            app = self._with_settings(app, data_settings)
        bundle = Bundle.read(app)
        bundle.sign(read_signing_key(self._keys / "signing"), self.folder / "bundles")
        settings = " ".join(
            f"{key}={json.dumps(value)}"
            for key, value in config.items()
            if key not in data_settings
        )
        run = ("flwr", "run", bundle.spec, _CONNECTION, "--stream", "--run-config", settings)
        self.start(name, *run)
        return name

    def _with_settings(self, app: Path, settings: Mapping[str, Any]) -> Path:
        """Return a copy of an app with other values of some options and a version of its own."""
        self._copies += 1
        copy = self.folder / "apps" / str(self._copies)
        shutil.copytree(app, copy, ignore=shutil.ignore_patterns("__pycache__", "runs"))
        path = copy / "pyproject.toml"
        project = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
        project["tool"]["flwr"]["app"]["config"].update(settings)
        project["project"]["version"] = f"{_COPIES_VERSION}.{self._copies}"
        path.write_text(tomlkit.dumps(project), encoding="utf-8")
        return copy

    def traffic(self) -> dict[str, int]:
        """Return the bytes of the newest run, as Flower counted them."""
        listed = json.loads(self.flwr("list", _CONNECTION, "--format", "json"))
        counted: dict[str, int] = listed["runs"][0]["network-traffic"]
        return counted

    def flwr(self, *arguments: str) -> str:
        """Return what Flower's command line prints."""
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
        """Return the end of a process's log."""
        text = without_colours((self.folder / f"{name}.log").read_text(errors="replace"))
        return "\n".join(escape_controls(line) for line in text.splitlines()[-lines:])
