"""Bundles, their signatures as Flower verifies them, and the hub that serves both."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from fedfw.cli import main
from fedfw.cli.deploy_init import copy_app

pytest.importorskip("flwr")

import yaml
from flwr.supercore.fab import Fab
from flwr.superlink.servicer.control.control_handlers import _format_verification
from flwr.supernode.start_client_internal import _verify_fab

from fedfw.deployment.flower.bundles import Bundle, read_signing_key, signatures, trust_line
from fedfw.deployment.flower.hub import make_hub
from fedfw.deployment.flower.keys import make_node_key, make_signing_key
from fedfw.deployment.flower.proxy import Address


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


def test_a_node_runs_what_a_trusted_key_signed_and_nothing_else(tmp_path: Path, bundle: Bundle) -> None:
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
            "unpacks to 2 MiB, expected at most 1 MiB: an app is code, and data",
        ),
        (zipped({"a": bytes(1 << 20), "b": bytes(1 << 20)}), "unpacks to 2 MiB, expected at most 1 MiB"),
        (zipped({str(number): b"" for number in range(11)}), "has 11 files, expected at most 10"),
        (b"no archive", r"is no bundle \(File is not a zip file\), expected one that 'fedfw deploy sign' wrote"),
    ],
)
def test_a_bundle_that_unpacks_to_much_is_refused(
    data: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedfw.deployment.flower.bundles._MOST_UNPACKED", 1 << 20)
    monkeypatch.setattr("fedfw.deployment.flower.bundles._MOST_FILES", 10)
    (tmp_path / "bomb.fab").write_bytes(data)
    with pytest.raises(ValueError, match=rf"bomb\.fab' {message}"):
        Bundle.read(tmp_path / "bomb.fab")


def test_a_folder_and_its_bundle_are_the_same(tmp_path: Path, bundle: Bundle) -> None:
    path = bundle.sign(key(tmp_path, "owner"), tmp_path / "bundles")
    assert path.name == "fedfw.federation.1.0.0.fab"
    assert Bundle.read(path) == bundle == Bundle.read(tmp_path / "app")


def test_a_signed_version_does_not_change(tmp_path: Path, bundle: Bundle) -> None:
    owner = key(tmp_path, "owner")
    bundle.sign(owner, tmp_path / "bundles")
    with open(tmp_path / "app" / "federation" / "task.py", "a") as task:
        task.write("# another line\n")
    with pytest.raises(ValueError, match=r"a version that was signed does not change\. Expected a new version"):
        Bundle.read(tmp_path / "app").sign(owner, tmp_path / "bundles")


def test_keys_of_other_kinds_are_refused(tmp_path: Path) -> None:
    make_node_key(tmp_path / "node")
    (tmp_path / "text").write_text("no key")
    for name in ("node", "text", "node.pub"):
        with pytest.raises(ValueError, match=r"key='.*expected one of ssh-keygen -t ed25519 -N"):
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
        threading.Thread(target=server.serve_forever, daemon=True).start()
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
        *(None, [], "text", {}, {"app_id": "@fedfw/federation"}, {"app_id": "@fedfw/federation", "app_version": None}),
        *({"app_id": "@fedfw/other", "app_version": "1.0.0"}, {"app_id": "@../../owner", "app_version": "1.0.0"}),
        *({"app_id": "@fedfw/federation", "app_version": "9.9.9"}, {"app_id": 3, "app_version": "/../1.0.0"}),
    ]
    with hub(tmp_path / "bundles") as connection:
        for question in questions:
            assert ask(connection, "POST", "/v1/hub/fetch-fab", question)[0] == 404
        for path in ("/", "/fab/", "/fab/../owner", "/fab/%2e%2e/owner", "/etc/passwd", "/fab/*.fab"):
            assert ask(connection, "GET", path)[0] == 404
        good = {"app_id": "@fedfw/federation", "app_version": "1.0.0"}
        assert ask(connection, "POST", "/v1/other", good)[0] == 404


@pytest.mark.parametrize("address", ["0.0.0.0:8600", "10.0.0.1:8600", "example.org:8600"])
def test_the_hub_listens_on_this_machine_alone(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "hub", str(tmp_path), "--listen", address]) == 2
    assert f"listen='{address}', expected an address of this machine alone" in capsys.readouterr().err
