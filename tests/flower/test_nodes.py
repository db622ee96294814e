"""Flower's changed quickstart where Flower runs it: two real nodes, and its simulation engine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import fedfw
from fedfw.deployment.flower.local import HOST, QUIET, free_port
from tests.flower.grid import QUICKSTART, imported, simulated

pytestmark = pytest.mark.deployment
ROUNDS = 10


@dataclass
class Federation:
    """Flower's own programs in a folder, as its documentation starts them, without keys."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def start(self, name: str, *command: str) -> None:
        """Start a program in a group of processes of its own."""
        with open(self.folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.folder,
                process_group=0,
            )
        self.processes.append(process)

    def start_nodes(self, count: int) -> None:
        """Start a SuperLink and SuperNodes on free ports of this machine."""
        port = free_port()
        (self.folder / "flwr").mkdir()
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "real"\n\n[superlink.real]\naddress = "{HOST}:{port}"\n'
            "insecure = true\n"
        )
        where = ("--insecure", "--host", HOST)
        database = str(self.folder / "state.db")
        self.start(
            "superlink", "flower-superlink", *where, "--port", str(port), "--database", database
        )
        time.sleep(5)
        for k in range(count):
            self.start(
                f"node-{k}",
                *("flower-supernode", *where, "--port", str(free_port())),
                *("--superlink", f"{HOST}:{port}"),
                *("--node-config", f"partition-id={k} num-partitions={count}"),
            )

    def run(self, *arguments: str) -> str:
        """Return what ``flwr run`` prints until the run has ended."""
        done = subprocess.run(
            ["flwr", "run", str(self.folder / "app"), *arguments, "--stream"],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=900,  # a process for each message imports torch anew
        )
        return done.stdout + done.stderr

    def stop(self) -> None:
        """End what was started, last first, and all that belongs to it."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self.processes):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, how)
            for process in self.processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)


@contextmanager
def federation(folder: Path) -> Iterator[Federation]:
    """Copy the changed app, with a fixed start and a result that is written to the folder."""
    shutil.copytree(QUICKSTART / "after", folder / "app")
    server = folder / "app" / "quickstart" / "server_app.py"
    text = server.read_text()
    model = json.dumps(str(folder / "final_model.pt"))
    printed = "print(result.certificate, result.traffic, sep='\\n')"
    for old, new in (
        ("    global_model = Net()", "    torch.manual_seed(0)\n    global_model = Net()"),
        ('"final_model.pt")', f"{model})\n    {printed}"),
    ):
        assert old in text
        text = text.replace(old, new)
    server.write_text(text)
    running = Federation(folder)
    try:
        yield running
    finally:
        running.stop()


def expected_run(clients: int) -> fedfw.Run:
    """Return the same run of `fedfw.simulate`."""
    with imported(QUICKSTART / "after"):
        from quickstart.task import Net, load_data

        data = [load_data(k, clients)[0].dataset for k in range(clients)]
        torch.manual_seed(0)
        start = Net()
    return simulated(start, data, fedfw.FedFWPlus("ksparse:k=65,r=1", momentum=0.9), ROUNDS)


def assert_same(folder: Path, printed: str, run: fedfw.Run) -> None:
    """Compare the bits of the model, and the bytes that the app printed, with those of a run."""
    assert (folder / "final_model.pt").is_file(), printed[-3000:]
    saved = torch.load(folder / "final_model.pt", weights_only=True)
    expected = run.model.state_dict()
    assert all(torch.equal(saved[name], expected[name]) for name in expected)
    for way in ("up", "down"):
        payload = run.history.total(f"bytes_{way}")
        assert f"bytes {way}: payload {payload}, checks" in printed


def test_ten_rounds_on_two_real_nodes_end_where_simulate_does(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        running.start_nodes(2)
        printed = running.run("real")
    assert_same(tmp_path, printed, expected_run(2))


@pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation engine is not installed")
def test_ten_rounds_in_flowers_simulation_end_where_simulate_does(tmp_path: Path) -> None:
    script = f"""
import sys, torch
sys.path.insert(0, {str(tmp_path / "app")!r})
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from quickstart import client_app, server_app
app = ServerApp()
@app.main()
def main(grid, context):
    context.run_config = {{"num-server-rounds": {ROUNDS}, "lr": 0.1, "local-epochs": 1}}
    server_app.app(grid, context)
resources = {{"client_resources": {{"num_cpus": 1}}, "init_args": {{"num_cpus": 1}}}}
run_simulation(app, client_app.app, 3, backend_config=resources)
"""
    with federation(tmp_path) as running:
        path = f"{tmp_path / 'app'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**running.environment, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert_same(tmp_path, done.stdout + done.stderr, expected_run(3))
