"""The table of data sets, the folder they lie in, and those that are built in."""

import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from fedfw.data import DATASETS, MissingDataError, data_folder, load_data
from fedfw.data.download import download
from fedfw.data.sources import Source
from tests.data.files import DATA, entry, needs, tarred, zipped


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FEDFW_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder(None) == tmp_path / ".cache" / "fedfw"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder(None) == tmp_path / "cache" / "fedfw"
    monkeypatch.setenv("FEDFW_DATA", str(tmp_path / "data"))
    assert data_folder(None) == tmp_path / "data"
    assert data_folder(tmp_path / "here") == tmp_path / "here"


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.folder])
def test_missing_files_are_named_with_the_command_that_gets_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = DATASETS[name]
    with pytest.raises(MissingDataError) as caught:
        load_data(name, tmp_path)
    assert f"no file {Path(entry.layouts[0][0]).name} in {tmp_path / entry.folder}" in str(
        caught.value
    )
    if name == "emnist-small":
        assert "it has no download" in str(caught.value)
        return
    assert str(caught.value).endswith(f"fedfw data get {name} --data-dir {tmp_path}")
    monkeypatch.setenv("FEDFW_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match=f"fedfw data get {name}$"):
        load_data(name)


@pytest.mark.parametrize(
    ("name", "clients", "message"),
    [
        ("diggits", 3, r"unknown dataset 'diggits' \(did you mean 'digits'\?\), expected one of"),
        ("cats", 3, "unknown dataset 'cats', expected one of digits, diabetes"),
        ("digits:8", 3, "digits takes no argument"),
        ("synthetic", 0, "clients=0"),
    ],
)
def test_unknown_names(name: str, clients: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_data(name, clients=clients)


def test_sparse() -> None:
    data, again, other = (
        load_data("sparse:60"),
        load_data("sparse:60"),
        load_data("sparse:60", seed=1),
    )
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (2, (60,), 5000, 2000)
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert not torch.equal(data.train.inputs, other.train.inputs)
    assert torch.equal(data.train.inputs.abs(), torch.ones(5000, 60))
    # The mean of y x is far from zero for the ten features that matter, and for no other.
    told = ((2.0 * data.train.targets - 1)[:, None] * data.train.inputs).mean(0).abs()
    assert int((told > 0.08).sum()) == 10
    assert float(told.sort().values[-11]) < 0.06
    assert load_data("sparse").shape == (1000,)
    for wrong in ("sparse:9", "sparse:few"):
        with pytest.raises(ValueError, match="expected sparse:P with at least 10 features"):
            load_data(wrong)
    with pytest.raises(
        ValueError, match=r"sparse:100000000 takes 10430\.8 GiB, expected at most 8\.0 GiB"
    ):
        load_data("sparse:100000000")


CLASSES = {
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "cifar10": [5000] * 10,
    "a9a": [24_720, 7_841],
    "heart-disease": [234, 252],
}
"""Of some published data sets: how many training samples each class has."""
OWNERS = {
    "emnist-small": 1491,
    "ml-100k": 943,
    "shakespeare": 82,
    "tcga-brca": 6,
    "heart-disease": 4,
}
"""Of some: how many owners the training samples have."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(DATASETS[name].folder)) for name in (*CLASSES, *OWNERS)]
)
def test_published_files_are_what_the_table_says(name: str) -> None:
    data, entry = load_data(name, DATA), DATASETS[name]
    assert (data.shape, data.classes, (len(data.train), len(data.test))) == (
        entry.shape,
        entry.classes,
        entry.samples,
    )
    if name in CLASSES:
        assert data.train.targets.bincount().tolist() == CLASSES[name]
    if name in OWNERS:
        assert entry.owners == tuple(data.train.owners)
        assert max(len(of.unique()) for of in data.train.owners.values()) == OWNERS[name]


# --- Downloads from a server on this machine: whole files, or none ---

BODY = bytes(range(256)) * 4000


@dataclass
class Server:
    """What it serves: the bytes by path, and how many of them it really sends."""

    files: dict[str, bytes] = field(default_factory=dict)
    sends: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    base: str = ""

    def source(
        self, name: str, data: bytes, members: tuple[str, ...] = (), inside: str = ""
    ) -> Source:
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
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_file_is_fetched_once(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = server.source("a.gz", BODY)
    assert download(source, tmp_path / "new" / "folder")
    assert contents(tmp_path) == {"new/folder/a.gz": BODY}
    assert "a.gz: 100%" in capsys.readouterr().err
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
        source = Source(
            "http://127.0.0.1:9/a.zip", source.sha256, members
        )  # the discard port: nobody listens
        message = r"a\.zip: .*refused"
    else:
        sent = server.sends["/a.zip"] = len(BODY) // 2 if failure == "cut off" else 0
        message = f"a.zip: SHA-256 .* of {sent} bytes, expected {source.sha256}"
    with pytest.raises((OSError, ValueError), match=message) as caught:
        download(source, tmp_path)
    assert source.url in str(caught.value)
    assert contents(tmp_path) == before


FILES = {"one.bin": b"first", "two.bin": BODY}


FOLDER = entry("two.bin", tarfile.DIRTYPE)
"""A folder with a wanted name is no file."""


@pytest.mark.parametrize(
    ("name", "pack"), [("a.zip", zipped), ("a.tar.gz", lambda files: tarred(files, FOLDER))]
)
def test_wanted_members_are_unpacked_and_nothing_else(
    server: Server, tmp_path: Path, name: str, pack: object
) -> None:
    paths = {
        "inner/one.bin": FILES["one.bin"],
        "other/two.bin": FILES["two.bin"],
        "inner/other.bin": b"?",
    }
    source = server.source(name, pack(paths), tuple(FILES), "inner")  # type: ignore[operator]
    folder = tmp_path / "a" / "b"
    assert download(source, folder)
    assert contents(tmp_path) == {f"a/b/{file}": data for file, data in FILES.items()}
    assert not download(source, folder)
    (folder / "one.bin").rename(folder / "elsewhere.bin")
    assert download(source, folder)  # a member is missing
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.zip", zipped({"one.bin": b"1"}), r"a\.zip: no readable archive: it has no two\.bin"),
        (
            "a.tar.gz",
            tarred({"one.bin": b"1"}, FOLDER),
            r"a\.tar\.gz: no readable archive: it has no two\.bin",
        ),
        ("a.zip", BODY, r"a\.zip: no readable archive"),
        ("a.tar.gz", BODY, r"a\.tar\.gz: no readable archive"),
    ],
    # Archives hold the time at which they were made, which two workers would disagree about.
    ids=["zip without it", "tar without it", "no zip", "no tar"],
)
def test_archives_without_the_members(
    server: Server, tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        download(server.source(name, data, ("one.bin", "two.bin")), tmp_path)
    assert not any(path.name.startswith(".") or path.name == name for path in tmp_path.iterdir())
