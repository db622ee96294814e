"""Downloads from a server on this machine: whole files, or none."""

from __future__ import annotations

import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedfw.data.download import Meter, download
from fedfw.data.sources import Source

BODY = bytes(range(256)) * 4000


@dataclass
class Server:
    """What it serves: the bytes by path, and how many of them it really sends."""

    files: dict[str, bytes] = field(default_factory=dict)
    sends: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    base: str = ""

    def source(self, name: str, data: bytes, members: tuple[str, ...] = (), inside: str = "") -> Source:
        self.files["/" + name] = data
        return Source(f"{self.base}/{name}", sha256(data).hexdigest(), members, inside)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            if self.path not in state.files:
                self.send_error(404)
                return
            body = state.files[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.sends.get(self.path, len(body))])

        def log_message(self, *arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.base = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_file_is_fetched_once(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = server.source("a.gz", BODY)
    assert download(source, tmp_path / "new" / "folder")
    assert contents(tmp_path) == {"new/folder/a.gz": BODY}
    assert "a.gz: 1.0 of 1.0 MB" in capsys.readouterr().err
    assert not download(source, tmp_path / "new" / "folder")
    assert server.asked == ["/a.gz"]


def test_a_file_with_another_checksum_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(BODY[:-1])
    assert download(server.source("a.gz", BODY), tmp_path)
    assert contents(tmp_path) == {"a.gz": BODY}


@pytest.mark.parametrize("old", [None, b"the old one"])
@pytest.mark.parametrize("failure", ["checksum", "cut off", "nothing", "404", "no server"])
@pytest.mark.parametrize("members", [(), ("a.bin",)])
def test_a_failure_leaves_everything_as_it_was(
    server: Server, tmp_path: Path, old: bytes | None, failure: str, members: tuple[str, ...]
) -> None:
    source = server.source("a.zip", BODY, members)
    before = {} if old is None else {"a.zip": old}
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)
    if failure == "checksum":
        server.files["/a.zip"] = BODY[:-1] + b"?"
        message = f"a.zip: SHA-256 .* of {len(BODY)} bytes, expected {source.sha256}"
    elif failure == "404":
        del server.files["/a.zip"]
        message = r"a\.zip: HTTP Error 404"
    elif failure == "no server":
        source = Source("http://127.0.0.1:9/a.zip", source.sha256, members)  # the discard port: nobody listens
        message = r"a\.zip: .*refused"
    else:
        sent = server.sends["/a.zip"] = len(BODY) // 2 if failure == "cut off" else 0
        message = f"a.zip: the connection ended after {sent} of {len(BODY)} bytes"
    with pytest.raises((OSError, ValueError), match=message) as caught:
        download(source, tmp_path)
    assert source.url in str(caught.value)
    assert contents(tmp_path) == before


def test_a_file_that_cannot_be_put_in_place(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.gz").mkdir()
    with pytest.raises(OSError, match=r"a\.gz"):
        download(server.source("a.gz", BODY), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gz"]


FILES = {"one.bin": b"first", "two.bin": BODY}


def zipped(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        folder = tarfile.TarInfo("two.bin")  # a folder with a wanted name is no file
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    return data.getvalue()


@pytest.mark.parametrize(("name", "pack"), [("a.zip", zipped), ("a.tar.gz", tarred)])
def test_wanted_members_are_unpacked_and_nothing_else(server: Server, tmp_path: Path, name: str, pack: object) -> None:
    paths = {"inner/one.bin": FILES["one.bin"], "other/two.bin": FILES["two.bin"], "inner/other.bin": b"?"}
    source = server.source(name, pack(paths), tuple(FILES), "inner")  # type: ignore[operator]
    folder = tmp_path / "a" / "b"
    assert download(source, folder)
    assert contents(tmp_path) == {f"a/b/{file}": data for file, data in FILES.items()}
    assert not download(source, folder)
    (folder / "one.bin").rename(folder / "elsewhere.bin")
    assert download(source, folder)  # a member is missing
    assert len(server.asked) == 2


def test_members_that_a_user_has_unpacked_are_found(server: Server, tmp_path: Path) -> None:
    source = server.source("a.zip", zipped(FILES), tuple(FILES), "inner")
    (tmp_path / "inner").mkdir()
    for name, data in FILES.items():
        (tmp_path / "inner" / name).write_bytes(data)
    assert not download(source, tmp_path)
    assert not server.asked


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.zip", zipped({"one.bin": b"1"}), r"a\.zip: no readable archive: it has no two\.bin"),
        ("a.tar.gz", tarred({"one.bin": b"1"}), r"a\.tar\.gz: no readable archive: it has no two\.bin"),
        ("a.zip", BODY, r"a\.zip: no readable archive"),
        ("a.tar.gz", BODY, r"a\.tar\.gz: no readable archive"),
    ],
    # Archives hold the time at which they were made, which two workers would disagree about.
    ids=["zip without it", "tar without it", "no zip", "no tar"],
)
def test_archives_without_the_members(server: Server, tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        download(server.source(name, data, ("one.bin", "two.bin")), tmp_path)
    assert not any(path.name.startswith(".") or path.name == name for path in tmp_path.iterdir())


def test_a_download_that_is_too_large_is_given_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedfw.data.download.LARGEST", 1000)
    with pytest.raises(OSError, match=rf"a\.gz: {len(BODY)} bytes, expected at most 1000"):
        download(server.source("a.gz", BODY), tmp_path)
    assert contents(tmp_path) == {}


def test_all_members_are_put_in_place_or_none(server: Server, tmp_path: Path) -> None:
    data = zipped({"one.bin": b"first", "../two.bin": b"second"})
    with pytest.raises(
        ValueError, match=r"a\.zip: no readable archive: member '\.\./two\.bin', expected a path within"
    ):
        download(server.source("a.zip", data, tuple(FILES)), tmp_path)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(("terminal", "per_second"), [(True, 10), (False, 0.5)])
def test_progress_is_shown_now_and_then(monkeypatch: pytest.MonkeyPatch, terminal: bool, per_second: float) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    meter = Meter("file.gz", 5_000_000, stream)
    for step in range(1, 641):  # ten seconds
        now = step / 64
        meter.show(step * 5000)
    meter.show(5_000_000, last=True)
    lines = [line.rstrip() for line in stream.getvalue().replace("\r", "\n").split("\n") if line.strip()]
    assert len(lines) <= 10 * per_second + 1
    assert len(lines) >= 0.7 * 10 * per_second
    assert lines[-1] == "file.gz: 5.0 of 5.0 MB"
    assert stream.getvalue().endswith("\n")
