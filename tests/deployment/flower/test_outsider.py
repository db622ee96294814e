"""A closed federation of real processes, attacked. Run by ``bash scripts/test-deployment.sh``."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.runtime import RuntimeHttpClient

from fedfw.cli import main
from fedfw.cli.deploy_demo import Demo
from fedfw.cli.deploy_init import copy_app
from fedfw.config import merge
from fedfw.deployment.flower.bundles import Bundle, read_signing_key
from fedfw.deployment.flower.checks.address import DETOURS, OPERATORS_PATHS, Outside
from fedfw.deployment.flower.keys import make_node_key, make_signing_key
from fedfw.deployment.flower.local import HOST, LocalFederation, free_port
from fedfw.deployment.flower.proxy import PROGRAMS, Address
from fedfw.rounds.wire import digest

from .test_apps import BASE, deploy, finished, wait_until
from .test_proxy import installed

pytestmark = pytest.mark.deployment

EVIL = '''
"""An app whose client's half leaves a mark where it runs, and whose server's half says what became of it."""

import json
import time
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.2)
    questions = [Message(RecordDict(), message_type="query", dst_node_id=node) for node in nodes]
    replies = grid.send_and_receive(questions, timeout=120)
    said = [reply.error.reason if reply.has_error() else "ran" for reply in replies]
    Path("{folder}/said.json").write_text(json.dumps(said))


@client.query()
def leave_a_mark(message, context):
    Path("{folder}/mark").write_text("ran")
    return Message(RecordDict(), reply_to=message)
'''


def evil_app(folder: Path, name: str) -> Path:
    """A complete app of its own name; its files land in its folder."""
    copy_app(folder / name)
    project = folder / name / "pyproject.toml"
    project.write_text(project.read_text().replace('name = "federation"', f'name = "{name}"'))
    (folder / name / "federation" / "apps.py").write_text(
        EVIL.replace("{folder}", str(folder / name))
    )
    return folder / name


class Outsider:
    """Somebody with Flower's command line, the public certificate and an address."""

    def __init__(self, folder: Path, ca: Path, address: str) -> None:
        self.folder, self.ca, self.address = folder, ca, address
        folder.mkdir()
        make_node_key(folder / "mine")
        (folder / "config.toml").write_text(
            f'[superlink]\ndefault = "theirs"\n\n'
            f'[superlink.theirs]\naddress = "{address}"\nroot-certificates = "{ca}"\n'
        )

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"FLWR_HOME": str(self.folder), "FLWR_TELEMETRY_ENABLED": "0"}
        command = [str(Path(sys.executable).with_name("flwr")), *arguments]
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120
        )

    def acquired_task(self) -> int:
        """The status that asking for somebody's task is answered with."""
        runtime = RuntimeHttpClient.from_server_address(
            self.address, False, self.ca.read_bytes(), []
        )
        with runtime, pytest.raises(httpx.HTTPStatusError) as refused:
            runtime.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
        return refused.value.response.status_code


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Two nodes, one behind each proxy where both programs are installed."""
    proxies = [program for program in PROGRAMS if installed(program)]
    with LocalFederation(tmp_path_factory.mktemp("closed"), 2, proxies=proxies) as running:
        yield running


def test_outsiders_and_strange_bundles_are_refused_while_a_signed_run_goes_on(
    federation: LocalFederation, capsys: pytest.CaptureFixture[str]
) -> None:
    if federation.addresses == [f"{HOST}:{federation.port}"]:
        pytest.skip(
            "neither nginx nor haproxy is installed: apt-get install nginx libnginx-mod-stream haproxy"
        )
    folder = federation.folder
    copy_app(folder / "app")
    demo = Demo.of(
        merge(
            BASE, {"algorithm": "fedfw", "constraint": "l1:10", "clients": 2, "rounds": 2}, "test"
        )
    )
    run = deploy(federation, folder / "app", demo, folder / "out")

    # Two bundles of whoever controls the SuperLink: one without a signature; one with a stranger's
    # and a borrowed one.
    unsigned, strange = evil_app(folder, "unsigned"), evil_app(folder, "strange")
    make_signing_key(folder / "keys" / "stranger")
    bundle = Bundle.read(strange)
    path = bundle.sign(read_signing_key(folder / "keys" / "stranger"), folder / "bundles")
    [borrowed] = (folder / "bundles").glob("fedfw.federation.*.sig")
    shutil.copy(borrowed, path.with_name(path.name + borrowed.name.partition(".fab")[2]))
    federation.start("unsigned", "flwr", "run", str(unsigned), "fedfw", "--stream")
    federation.start("strange", "flwr", "run", bundle.spec, "fedfw", "--stream")

    ca = folder / "keys" / "ca.crt"
    for number, address in enumerate(federation.addresses):
        outsider = Outsider(folder / f"outsider-{number}", ca, address)
        commands = (
            ("supernode", "register", "mine.pub"),
            ("run", str(unsigned)),
            ("list",),
            ("supernode", "list"),
        )
        for command in commands if number == 0 else commands[:1]:
            done = outsider.flwr(*command, "theirs")
            assert done.returncode != 0, done.stdout
            assert "404" in done.stdout + done.stderr, done.stdout + done.stderr
        outside = Outside(Address.parse(address), ca)
        closed = (*OPERATORS_PATHS, *DETOURS)
        assert {path: outside.status(path) for path in closed} == dict.fromkeys(closed, 404)
        assert outsider.acquired_task() == 404
        assert outside.status("/v1/fleet/pull-messages") == 401
        capsys.readouterr()
        assert main(["deploy", "check", "--address", address, "--ca", str(ca)]) == 0
        assert capsys.readouterr().out.count("ok: ") == 4
    assert (
        Outsider(folder / "local", ca, f"{HOST}:{federation.port}").acquired_task() == 401
    )  # no secret

    history = finished(federation, run, folder / "out")
    assert [record.participants for record in history] == [2, 2]
    assert history[-1].digest == digest(demo.simulated.x).hex()
    for app in (unsigned, strange):
        wait_until(lambda app=app: not federation.running(app.name), f"the end of {app.name}")  # type: ignore[misc]
        said = json.loads((app / "said.json").read_text())
        assert len(said) == 2
        assert all("could not be verified" in reason for reason in said), said
        assert not (app / "mark").exists()


def test_the_check_fails_on_open_federations(
    federation: LocalFederation, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, ports = (
        federation.folder / "keys",
        {"keys alone": free_port(), "not even keys": free_port()},
    )
    for name, port in ports.items():
        federation.start(
            name,
            *("flower-superlink", "--host", HOST, "--port", str(port)),
            *(("--enable-supernode-auth",) if name == "keys alone" else ()),
            *(
                "--ssl-ca-certfile",
                str(keys / "ca.crt"),
                "--ssl-certfile",
                str(keys / "server.pem"),
            ),
            *("--ssl-keyfile", str(keys / "server.key")),
        )

    def listens(port: int) -> bool:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return True
        return False

    for name, port in ports.items():
        wait_until(lambda port=port: listens(port), f"the SuperLink with {name}")  # type: ignore[misc]
        assert (
            main(["deploy", "check", "--address", f"{HOST}:{port}", "--ca", str(keys / "ca.crt")])
            == 1
        )
        said = capsys.readouterr().out
        assert (
            "FAIL: an outsider registers nodes, runs apps and reads logs: /v1/control/register-node"
            in said
        )
        assert ("FAIL: a new key registered itself" in said) == (name == "not even keys")
    guest = Outsider(federation.folder / "guest", keys / "ca.crt", f"{HOST}:{ports['keys alone']}")
    done = guest.flwr("supernode", "register", "mine.pub", "theirs")
    assert done.returncode == 0, done.stdout + done.stderr
