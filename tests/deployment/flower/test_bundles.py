"""Bundles, their signatures as Flower verifies them, and the hub that serves both."""

import io
import json
import socket
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.supercore.fab import Fab
from flwr.superlink.servicer.control.control_handlers import _format_verification
from flwr.supernode.start_client_internal import _verify_fab

from fedfw.cli import main
from fedfw.cli.deploy_init import copy_app
from fedfw.deployment.flower.bundles import Bundle, read_signing_key, signatures, trust_line
from fedfw.deployment.flower.hub import make_hub
from fedfw.deployment.flower.keys import make_node_key, make_signing_key
from fedfw.deployment.flower.proxy import Address
from tests.deployment.loopback import put_behind_a_link, replace_by_a_pipe


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    copy_app(tmp_path / "app")
    return Bundle.read(tmp_path / "app")


def key(folder: Path, name: str) -> Any:
    make_signing_key(folder / name)
    return read_signing_key(folder / name)


def verified(data: bytes, signed: list[dict[str, Any]], trusted: dict[str, str]) -> bool:
    """As a SuperNode decides it."""
    return _verify_fab(Fab("", data, _format_verification(signed)), trusted)


def test_a_node_runs_what_a_trusted_key_signed_and_nothing_else(
    tmp_path: Path, bundle: Bundle
) -> None:
    owner, stranger = key(tmp_path, "owner"), key(tmp_path, "stranger")
    trusted = yaml.safe_load(trust_line(owner.public_key()))
    path = bundle.sign(stranger, tmp_path / "bundles")
    assert not verified(bundle.data, signatures(path), trusted)  # type: ignore[arg-type]
    assert bundle.sign(owner, tmp_path / "bundles") == path  # both may sign the same bundle
    both: Any = signatures(path)
    assert len(both) == 2
    assert verified(bundle.data, both, trusted)
    assert not verified(bundle.data + b"?", both, trusted)
    assert not verified(bundle.data, [], trusted)


def zipped(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            zipped({"pyproject.toml": bytes(2 << 20)}),
            r"is no bundle \(it unpacks to 2 MiB, expected at most 1 MiB: an app is code, and data",
        ),
        (
            zipped({"a": bytes(1 << 20), "b": bytes(1 << 20)}),
            r"is no bundle \(it unpacks to 2 MiB, expected at most 1 MiB",
        ),
        (zipped({str(number): b"" for number in range(11)}), "has 11 files, expected at most 10"),
        (
            b"no archive",
            r"is no bundle \(File is not a zip file\), expected a file that 'fedfw deploy sign'",
        ),
    ],
    ids=[
        "one file",
        "two files",
        "many files",
        "no archive",
    ],  # archives hold times, which differ between workers
)
def test_a_bundle_that_unpacks_to_much_is_refused(
    data: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedfw.deployment.flower.bundles._MOST_UNPACKED", 1 << 20)
    monkeypatch.setattr("fedfw.deployment.flower.bundles._MOST_FILES", 10)
    (tmp_path / "bomb.fab").write_bytes(data)
    with pytest.raises(ValueError, match=rf"bomb\.fab {message}"):
        Bundle.read(tmp_path / "bomb.fab")


def test_a_signed_version_does_not_change(tmp_path: Path, bundle: Bundle) -> None:
    owner = key(tmp_path, "owner")
    bundle.sign(owner, tmp_path / "bundles")
    with open(tmp_path / "app" / "federation" / "task.py", "a") as task:
        task.write("# another line\n")
    with pytest.raises(
        ValueError, match=r"a version that was signed does not change\. Expected a new version"
    ):
        Bundle.read(tmp_path / "app").sign(owner, tmp_path / "bundles")


def test_keys_of_other_kinds_are_refused(tmp_path: Path) -> None:
    make_node_key(tmp_path / "node")
    (tmp_path / "text").write_text("no key")
    for name in ("node", "text", "node.pub"):
        with pytest.raises(
            ValueError,
            match=r"is (no key|a key of another kind), expected one of ssh-keygen -t ed25519 -N",
        ):
            read_signing_key(tmp_path / name)


def test_the_command_says_what_everybody_needs(
    tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = key(tmp_path, "owner")
    app, signer, out = (str(tmp_path / name) for name in ("app", "owner", "out"))
    assert main(["deploy", "sign", app, "--key", signer, "--out", out]) == 0
    said = capsys.readouterr().out
    assert bundle.digest in said
    assert "flwr run @fedfw/federation==1.0.0" in said
    assert trust_line(owner.public_key()) in said


# --- the hub ---


@contextmanager
def hub(folder: Path) -> Iterator[HTTPConnection]:
    with make_hub(folder, Address("127.0.0.1", 0)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
        server.shutdown()


def ask(connection: HTTPConnection, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection.request(method, path, json.dumps(body).encode())
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data


def test_the_hub_hands_out_bundles_with_their_signatures(tmp_path: Path, bundle: Bundle) -> None:
    path = bundle.sign(key(tmp_path, "owner"), tmp_path / "bundles")
    with hub(path.parent) as connection:
        question = {"app_id": "@fedfw/federation", "app_version": "1.0.0", "flwr_version": "1.41.0"}
        status, data = ask(connection, "POST", "/v1/hub/fetch-fab", question)
        assert status == 200
        found = json.loads(data)
        assert found["verifications"] == signatures(path)
        assert ask(connection, "GET", "/" + found["fab_url"].split("/", 3)[3]) == (200, bundle.data)


def test_the_hub_hands_out_nothing_else(tmp_path: Path, bundle: Bundle) -> None:
    bundle.sign(key(tmp_path, "owner"), tmp_path / "bundles")
    questions: list[Any] = [
        *(
            None,
            [],
            "text",
            {},
            {"app_id": "@fedfw/federation"},
            {"app_id": "@fedfw/federation", "app_version": None},
        ),
        *(
            {"app_id": "@fedfw/other", "app_version": "1.0.0"},
            {"app_id": "@../../owner", "app_version": "1.0.0"},
        ),
        *(
            {"app_id": "@fedfw/federation", "app_version": "9.9.9"},
            {"app_id": 3, "app_version": "/../1.0.0"},
        ),
    ]
    with hub(tmp_path / "bundles") as connection:
        for question in questions:
            assert ask(connection, "POST", "/v1/hub/fetch-fab", question)[0] == 404
        for path in (
            "/",
            "/fab/",
            "/fab/../owner",
            "/fab/%2e%2e/owner",
            "/etc/passwd",
            "/fab/*.fab",
        ):
            assert ask(connection, "GET", path)[0] == 404
        good = {"app_id": "@fedfw/federation", "app_version": "1.0.0"}
        assert ask(connection, "POST", "/v1/other", good)[0] == 404


@pytest.mark.parametrize("address", ["0.0.0.0:8600", "10.0.0.1:8600", "example.org:8600"])
def test_the_hub_listens_on_this_machine_alone(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "hub", str(tmp_path), "--listen", address]) == 2
    assert (
        f"--listen {address}, expected an address of this machine alone" in capsys.readouterr().err
    )


# --- what is no bundle, and what outsiders on the same machine send ---


NO_BUNDLES = {
    "empty": (b"", "File is not a zip file"),
    "text": (b"not an archive", "File is not a zip file"),
    "cut off": (zipped({"pyproject.toml": b"[project]"})[:-30], "File is not a zip file"),
    "another archive": (zipped({"readme.md": b"hello"}), "There is no item named 'pyproject.toml'"),
    "no configuration": (zipped({"pyproject.toml": b"[project"}), "Invalid TOML content"),
    "no app": (zipped({"pyproject.toml": b"[project]"}), "missing"),
    "no text": (zipped({"pyproject.toml": b"\xff\xfe"}), "can't decode"),
    "a bomb": (
        zipped({"pyproject.toml": bytes(2**21)}),
        "has 2,097,152 bytes, expected at most 1,048,576",
    ),
    "too large": (bytes(11 * 2**20), "has more than 10,485,760 bytes"),
}


@pytest.mark.parametrize("kind", NO_BUNDLES)
def test_what_is_no_bundle_is_said_in_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, reason = NO_BUNDLES[kind]
    path = tmp_path / "fedfw.federation.1.0.0.fab"
    path.write_bytes(data)
    make_signing_key(tmp_path / "owner")
    words = [
        "deploy",
        "sign",
        str(path),
        "--key",
        str(tmp_path / "owner"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedfw deploy: {path} ")
    assert reason in line
    assert not (tmp_path / "out").exists()


def raw(server_port: int, *parts: bytes) -> bytes:
    """What a connection is answered on which these bytes are sent, until it is closed."""
    with socket.create_connection(("127.0.0.1", server_port), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
        with suppress(OSError):  # it was closed meanwhile
            connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Content-Length: -1\r\n", 400),
        (b"Content-Length: +5\r\n", 400),
        (b"Content-Length: 1e3\r\n", 400),
        (b"Content-Length: many\r\n", 400),
        ("Content-Length: \u0665\r\n".encode(), 400),
        (b"Content-Length: 65537\r\n", 413),
        (b"Content-Length: 99999999999999999999\r\n", 413),
        (b"", 411),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n", 411),
        (b"Transfer-Encoding: chunked\r\n", 411),
        (b"Content-Length: 50\r\n", 400),  # and then nothing
    ],
)
def test_the_hub_reads_no_more_than_a_question(tmp_path: Path, headers: bytes, status: int) -> None:
    """A negative length used to be read without end: 1.5 GB in two seconds, by any user of the
    machine.
    """
    with hub(tmp_path) as connection:
        head = b"POST /v1/hub/fetch-fab HTTP/1.1\r\n" + headers + b"\r\n"
        answer = raw(int(connection.port), head)
        assert answer.split()[1] == str(status).encode()
        assert ask(connection, "GET", "/")[0] == 404  # it goes on


def test_the_hub_keeps_few_connections(tmp_path: Path) -> None:
    with hub(tmp_path) as connection, ExitStack() as everything:
        for _ in range(40):
            everything.enter_context(
                socket.create_connection(("127.0.0.1", int(connection.port)), timeout=20)
            )
        with pytest.raises((HTTPException, OSError)):
            ask(connection, "GET", "/")
        everything.close()
        for _ in range(200):  # until the threads of those have ended
            with suppress(HTTPException, OSError):
                assert ask(connection, "GET", "/")[0] == 404
                return
        pytest.fail("the hub does not go on")


@pytest.mark.parametrize("which", ["fab", "sig"])
@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(0o664),
        lambda path: path.chmod(0o646),
        put_behind_a_link,
        replace_by_a_pipe,
    ],
    ids=["group", "others", "link", "pipe"],
)
def test_the_hub_hands_out_files_that_nobody_else_can_write(
    tmp_path: Path, bundle: Bundle, change: Any, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = bundle.sign(key(tmp_path, "owner"), tmp_path / "bundles")
    [signature] = path.parent.glob("*.sig")
    assert (
        path.stat().st_mode & signature.stat().st_mode & 0o222 == 0
    )  # what is signed does not change
    change(path if which == "fab" else signature)
    good = {"app_id": "@fedfw/federation", "app_version": "1.0.0"}
    with hub(path.parent) as connection:
        assert ask(connection, "POST", "/v1/hub/fetch-fab", good)[0] in (404, 500)
        if which == "fab":
            assert ask(connection, "GET", f"/fab/{path.name}")[0] == 500


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 4000, b" " * 5000])
def test_the_hub_hands_out_no_damaged_signature(
    tmp_path: Path, bundle: Bundle, data: bytes
) -> None:
    path = bundle.sign(key(tmp_path, "owner"), tmp_path / "bundles")
    (path.parent / f"{path.name}.fpk_0.sig").write_bytes(data)
    with hub(path.parent) as connection:
        good = {"app_id": "@fedfw/federation", "app_version": "1.0.0"}
        assert ask(connection, "POST", "/v1/hub/fetch-fab", good)[0] == 500
        path.with_name(f"{path.name}.fpk_0.sig").unlink()
        assert ask(connection, "POST", "/v1/hub/fetch-fab", good)[0] == 200
