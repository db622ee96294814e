"""What nodes and executors look at before they start: real processes that end with one line and
status 2.
"""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from fedfw.cli.main import main
from fedfw.deployment.flower.bundles import read_signing_key, trust_line
from fedfw.deployment.flower.keys import make_node_key, make_secret, make_signing_key
from fedfw.deployment.flower.local import free_port
from fedfw.deployment.flower.proxy import Address
from fedfw.deployment.flower.start import require_free_port, wait_for_server
from tests.processes import start_python


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An owner's files, an authority, and certificates of it: one that is valid, and one that has
    expired.
    """
    folder = tmp_path_factory.mktemp("keys")
    make_node_key(folder / "node")
    make_secret(folder / "secret")
    make_signing_key(folder / "signing")
    line = trust_line(read_signing_key(folder / "signing").public_key())
    (folder / "trusted.yaml").write_text(line)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    trustme.CA().cert_pem.write_to_path(str(folder / "other.crt"))
    valid = authority.issue_cert("127.0.0.1")
    expired = authority.issue_cert(
        "127.0.0.1", not_before=yesterday - timedelta(days=9), not_after=yesterday
    )
    for name, one in (("valid", valid), ("expired", expired)):
        one.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.pem"))
    return folder


@contextmanager
def listening(certificate: Path | None) -> Iterator[Address]:
    """A server that shakes hands, with TLS if it has a certificate, and closes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None:
        context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = server.accept()
                except OSError:
                    return
                with accepted, suppress(OSError):
                    if certificate is None:
                        accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        accepted.recv(2**16)
                    else:
                        context.wrap_socket(accepted, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        yield Address("127.0.0.1", server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


def node(keys: Path, superlink: object, **changed: object) -> list[str]:
    """The words by which a node is started."""
    given: dict[str, object] = {
        "superlink": superlink,
        "root-certificates": keys / "ca.crt",
        "auth-supernode-private-key": keys / "node",
        "trusted-entities": keys / "trusted.yaml",
        "superexec-auth-secret-file": keys / "secret",
        "node-config": "partition-id=0",
        "port": free_port(),
        "wait": 0,
    }
    given |= {name.replace("_", "-"): value for name, value in changed.items()}
    return [
        "deploy",
        "node",
        *(str(word) for name, value in given.items() for word in (f"--{name}", value)),
    ]


def ends(words: list[str]) -> str:
    """The one line with which a process of its own ends."""
    done = start_python(["-m", "fedfw", *words]).wait(60)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert not done.stdout
    assert line.startswith("fedfw deploy: ")
    return line.removeprefix("fedfw deploy: ")


def test_a_server_that_is_not_there(keys: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    expected = (
        f"{address}: no server answers there (Connection refused); waited 0 s. Start it first"
    )
    assert ends(node(keys, address)) == f"--superlink {expected}"
    secret = ("--superexec-auth-secret-file", str(keys / "secret"), "--wait", "0")
    words = ["deploy", "executor", "--runtime-api-address", address, *secret]
    assert ends(words) == f"--runtime-api-address {expected}"


def test_a_certificate_that_has_expired(keys: Path) -> None:
    with listening(keys / "expired.pem") as address:
        reason = f"{address}: the server's certificate is refused (certificate has expired), expected a valid one"
        assert ends(node(keys, address)).startswith(f"--superlink {reason}")
        secret = (
            "--superexec-auth-secret-file",
            str(keys / "secret"),
            "--root-certificates",
            str(keys / "ca.crt"),
        )
        words = ["deploy", "executor", "--runtime-api-address", str(address), *secret]
        assert ends(words).startswith(f"--runtime-api-address {reason}")


def test_a_port_that_is_taken(keys: Path) -> None:
    with listening(keys / "valid.pem") as address, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = ends(node(keys, address, port=port))
    assert said == (
        f"--port 127.0.0.1:{port} is taken by another process, expected a free port, or the end of that process"
    )


FILES = (
    "root-certificates",
    "auth-supernode-private-key",
    "trusted-entities",
    "superexec-auth-secret-file",
)


@pytest.mark.parametrize("flag", FILES)
def test_a_file_that_cannot_be_read(
    flag: str, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, reason in ((keys / "missing", "No such file or directory"), (keys, "Is a directory")):
        assert main(node(keys, "127.0.0.1:1", **{flag: path})) == 2
        assert capsys.readouterr().err == (
            f"fedfw deploy: --{flag} {path} cannot be read ({reason}), expected a file of this user\n"
        )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"root_certificates": "KEYS/secret"}, "secret holds no certificate in PEM form"),
        (
            {"node_config": "partition-id=0 consnet='a'"},
            "node-config: unknown key 'consnet' (did you mean 'consent'?)",
        ),
        (
            {"node_config": "partition-id=0 consent='/no/such'"},
            "node-config: consent /no/such cannot be read",
        ),
        ({"host": "0.0.0.0"}, "--host 0.0.0.0, expected an address of this machine alone"),
        ({"port": 70000}, "--port 70000, expected a whole number from 1 to 65535"),
        ({"wait": -1}, "--wait -1, expected a number of at least 0"),
        ({"wait": "nan"}, "--wait nan, expected a number of at least 0"),
        ({"superlink": "nowhere"}, "'nowhere' is no address, expected HOST:PORT"),
    ],
)
def test_settings_that_make_no_sense(
    changed: dict[str, object], reason: str, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {name: str(value).replace("KEYS", str(keys)) for name, value in changed.items()}
    assert main(node(keys, given.pop("superlink", "127.0.0.1:1"), **given)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert reason in line


@pytest.mark.parametrize(
    ("certificate", "ca", "reason"),
    [
        ("valid.pem", "other.crt", "the server's certificate is refused"),
        (None, "ca.crt", "the server speaks no TLS"),
    ],
)
def test_servers_of_others(certificate: str | None, ca: str, reason: str, keys: Path) -> None:
    own = None if certificate is None else keys / certificate
    with (
        listening(own) as address,
        pytest.raises(ValueError, match=f"--superlink {address}: {reason}"),
    ):
        wait_for_server("--superlink", address, keys / ca, 60)  # which is said at once


def test_a_server_that_is_there_or_comes_later_is_waited_for(keys: Path) -> None:
    with listening(keys / "valid.pem") as address:
        wait_for_server("--superlink", address, keys / "ca.crt", 0)
        wait_for_server("--superlink", address, None, 0)
    port = free_port()
    later: list[socket.socket] = []
    threading.Timer(0.3, lambda: later.append(socket.create_server(("127.0.0.1", port)))).start()
    wait_for_server("--superlink", Address("127.0.0.1", port), None, 60)
    later.pop().close()


def test_an_address_of_another_machine_cannot_be_listened_at() -> None:
    with pytest.raises(
        ValueError,
        match=r"--port 192\.0\.2\.7:80 cannot be listened at \(.*\), expected an address",
    ):
        require_free_port("--port", Address("192.0.2.7", 80))


def test_an_executor_whose_node_goes_away_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fedfw.deployment.flower import executor

    def fail() -> None:
        raise RuntimeError("the node\nis gone")

    monkeypatch.setattr(executor, "flower_superexec", fail)
    monkeypatch.setattr(os, "fork", lambda: 1)
    monkeypatch.setattr(executor.factory, "SubprocessExecutor", None)
    monkeypatch.setattr("sys.argv", ["fedfw"])
    with pytest.raises(
        ConnectionError, match=r"^the executor has ended: RuntimeError: the node is gone$"
    ):
        executor.run_executor([])
