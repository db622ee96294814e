"""Damaged and hostile files: a well-formed answer or one sentence that names the file, and never
much memory.
"""

import bz2
import gzip
import io
import random
import re
import struct
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from fedfw.data import Part, _reader, limits, load_data
from fedfw.data.archives import UNREADABLE, members, reason
from fedfw.data.base import Columns, Request
from fedfw.data.download import _SafeRedirects
from fedfw.data.images import read_batches, read_idx, read_parts
from fedfw.data.libsvm import load_own, read_libsvm
from fedfw.data.limits import read_isolated
from fedfw.data.movielens import read_ratings
from fedfw.data.shakespeare import read_speakers
from fedfw.data.sources import SOURCES
from tests.data.files import entry, idx_bytes, images, labels, tarred, zipped
from tests.data.test_images import mat_part
from tests.processes import run_python

TEXT = b"".join(b"%d 1:0.5 %d:1 9:-2e3 # sample %d\n" % (i % 2, i + 2, i) for i in range(6))
RATINGS = b"1\t1\t5\t881250949\n1\t2\t3\t881250949\n2\t1\t4\t881250949\n3\t3\t1\t881250949\n"
TABLE = b"a,y,c\n" + b"".join(b"%d.5,%d,%d\n" % (i, i % 2, i % 2) for i in range(12))
SPEECHES = b"First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n"


def mat(compressed: bool) -> bytes:
    file = io.BytesIO()
    savemat(
        file, {"dataset": {"train": mat_part(3), "test": mat_part(2)}}, do_compression=compressed
    )
    return file.getvalue()


def own_npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.arange(20.0).reshape(10, 2), y=np.arange(10) % 2, c=np.zeros(10, np.int64))
    return file.getvalue()


def read_array(path: Path, axes: int) -> bool:
    array = read_idx(path, axes)
    return array.ndim == axes and array.dtype.itemsize in (1, 4)


def read_mat_parts(path: Path) -> bool:
    return all(
        well_formed(part) and part.inputs.shape[1:] == (1, 28, 28) for part in read_parts(path, 47)
    )


def read_own(path: Path) -> bool:
    data = load_own(Request("libsvm", str(path), (), None, 1, 0))
    return well_formed(data.train) and bool(
        data.train.inputs.isfinite().all() and data.train.targets.isfinite().all()
    )


def well_formed(part: Part) -> bool:
    return len(part) > 0 and all(
        len(ids) == len(part) and int(ids.min()) >= 0 for ids in part.owners.values()
    )


def read_text(path: Path) -> bool:
    said = read_speakers(path, len(SPEECHES)).values()
    return all(
        text.dtype == torch.int8 and int(text.min()) >= 0 and int(text.max()) < 65
        for text in said
        if len(text)
    )


def read_table(path: Path) -> bool:
    data = load_data(f"table:{path}", columns=Columns(target="y", client="c"))
    return well_formed(data.train) and bool(
        data.train.inputs.isfinite().all() and data.train.targets.isfinite().all()
    )


def read_members(path: Path) -> bool:
    with open(path, "rb") as file:
        try:
            return all(
                len(content.read()) < 1000
                for _, content in members(file, path.suffix == ".zip", {"one.bin"})
            )
        except UNREADABLE as error:
            raise ValueError(f"{path}: {reason(error)}") from None  # as `download` does
        except OSError as error:
            raise OSError(f"{path}: {error}") from None


READERS: dict[str, tuple[str, bytes, Callable[[Path], bool]]] = {
    "idx": ("a.idx", idx_bytes(images(2)), lambda path: read_array(path, 3)),
    "idx.gz": (
        "a.gz",
        gzip.compress(idx_bytes(labels(30)), mtime=0),
        lambda path: read_array(path, 1),
    ),
    "mat": ("a.mat", mat(False), read_mat_parts),
    "mat compressed": ("a.mat", mat(True), read_mat_parts),
    "libsvm": ("text", TEXT, read_own),
    "libsvm.gz": ("text.gz", gzip.compress(TEXT, mtime=0), read_own),
    "libsvm.bz2": ("text.bz2", bz2.compress(TEXT), read_own),
    "ratings": ("u.data", RATINGS, lambda path: read_ratings(path, 3, 3, 4).shape == (4, 3)),
    "cifar": ("one.bin", bytes(2 * 3073), lambda path: well_formed(read_batches([path], 2))),
    "own csv": ("my.csv", TABLE, read_table),
    "own npz": ("my.npz", own_npz(), read_table),
    "speeches": ("input.txt", SPEECHES, read_text),
    "speeches.gz": ("input.txt.gz", gzip.compress(SPEECHES, mtime=0), read_text),
    "zip": ("a.zip", zipped({"inner/one.bin": b"first" * 20}), read_members),
    "tar": ("a.tar.gz", tarred({}, entry("inner/one.bin")), read_members),
    "tar inside": ("a.tar.gz", gzip.decompress(tarred({}, entry("inner/one.bin"))), read_members),
}


def mutated(data: bytes, draw: random.Random) -> bytes:
    """A few changes: bits, bytes, lengths that lie, pieces that are missing, doubled or moved."""
    result = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        at = draw.randrange(
            max(1, min(len(result), draw.choice((64, 400, len(result)))))
        )  # heads are small: hit them
        kind = draw.randrange(6)
        if kind == 0:
            result[at : at + 1] = (
                bytes([result[at] ^ 1 << draw.randrange(8)]) if at < len(result) else b"\1"
            )
        elif kind == 1:
            result[at : at + 1] = bytes([draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))])
        elif kind == 2:
            size = draw.choice((4, 8))
            number = draw.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 10**9, draw.randrange(2**32)))
            result[at : at + size] = number.to_bytes(8, draw.choice(("little", "big")))[:size]
        elif kind == 3:
            del result[at : at + draw.choice((1, 4, 8, len(result)))]
        elif kind == 4:
            result[at:at] = result[at : at + draw.choice((1, 8, 100))]
        else:
            result[at : at + 3] = draw.choice(
                (b"nan", b"inf", b"-1:", b"\t9\t", b"9" * 25, b"1e99", b"::", b"\n")
            )
    return bytes(result)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # NumPy's, for a table without lines
def test_mutated_files_give_arrays_or_one_clear_sentence(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file, whole, read = READERS[name]
    crashes = name.startswith("mat")  # scipy does, on some files: a process each
    if not crashes:
        request.getfixturevalue("in_this_process")
    trials = 12 if crashes else 500
    path = tmp_path / file
    inside = name == "tar inside"  # what lies under the checksum of gzip is changed as well
    path.write_bytes(gzip.compress(whole) if inside else whole)
    assert read(path)
    draw, refusals = random.Random(19), []
    for _ in range(trials):
        damaged = mutated(whole, draw)
        path.write_bytes(gzip.compress(damaged, 1) if inside else damaged)
        try:
            assert read(path)
        except (ValueError, OSError) as error:
            refusals.append(str(error))
    assert len(refusals) > trials // 10
    for refusal in refusals:
        assert str(path) in refusal
        assert "\n" not in refusal
        assert len(refusal) < 700


# --- what would take much memory
# ---------------------------------------------------------------------------------


def deflated(head: bytes, zeros: int, wbits: int) -> bytes:
    """The beginning of a packed stream: the head, and then so many MiB of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    start = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)) * zeros


def idx_bomb(samples: int, mebibytes: int) -> bytes:
    head = b"\0\0\x08\3" + b"".join(side.to_bytes(4, "big") for side in (samples, 28, 28))
    return deflated(head, mebibytes, 31)


def mat_bomb(promised: int, mebibytes: int) -> bytes:
    packed = deflated(struct.pack("<II", 14, promised), mebibytes, 15)
    return (
        b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(packed)) + packed
    )


def wide_element() -> bytes:
    """An array whose list of sides is 200 MiB long."""
    flags, sides = struct.pack("<IIII", 6, 8, 9, 0), struct.pack("<II", 5, 200 << 20)
    head, checked = struct.pack("<II", 14, 24 + (200 << 20)) + flags + sides, 1
    for part in (head, *[bytes(1 << 20)] * 200):
        checked = zlib.adler32(part, checked)
    packed = (
        deflated(head, 200, 15) + b"\3\0" + checked.to_bytes(4, "big")
    )  # an empty last block, and the end
    return (
        b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(packed)) + packed
    )


def npz_bomb(dtype: str, shape: tuple[int, ...], targets: int, mebibytes: int) -> bytes:
    """Inputs of so many MiB of zeros, whatever their head promises, and the targets 0, 1, 0, 1, ..."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as inputs:
            np.lib.format.write_array_header_1_0(
                inputs, {"descr": dtype, "fortran_order": False, "shape": shape}
            )
            for _ in range(mebibytes):
                inputs.write(bytes(1 << 20))
        array = io.BytesIO()
        np.save(array, np.arange(targets, dtype=np.uint8) % 2)
        archive.writestr("y.npy", array.getvalue())
    return file.getvalue()


def many_members() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(10_001):
            archive.writestr(f"{number}", b"")
    return file.getvalue()


def other_packing() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", b"")
    return file.getvalue()


def bombs() -> dict[str, bytes]:
    """By the name of the file, which tells the reader: small files that stand for more than the
    test allows.
    """
    return {
        "promises.idx": idx_bomb(3_000_000, 1),
        "large.idx": idx_bomb(100_000, 75),
        "lies.idx": idx_bomb(10, 700),
        "promises.mat": mat_bomb(2**32 - 8, 700),
        "lies.mat": mat_bomb(1000, 700),
        "wide.mat": wide_element(),
        "line.gz": deflated(b"1 1:1", 700, 31),
        "line.bz2": bz2.compress(b"1" * (1 << 20)) * 32,
        "index.txt": b"1 1:1\n0 1000000000000:1\n",
        "empty.gz": gzip.compress(b"\n" * (1 << 19)),
        "entries.gz": gzip.compress(
            (b"1 " + b" ".join(b"%d:1" % i for i in range(1, 2000)) + b"\n") * 900
        ),
        "dense.gz": gzip.compress(b"1 1:1\n0 100000:1\n" * 60),
        "columns.gz": gzip.compress(b"1 1:1\n0 9000000:1\n" * 60),  # too many for a model
        "promises.npz": npz_bomb("|u1", (1 << 30, 1024), 10, 1),
        "large.npz": npz_bomb("|u1", (70 << 10, 1024), 10, 70),
        "floats.npz": npz_bomb(
            "|u1", (5 << 10, 1024), 5 << 10, 5
        ),  # four times as large as float32
        "targets.npz": npz_bomb(
            "|u1", (1 << 20, 1), 1 << 20, 1
        ),  # places of values take more than the values
        "members.npz": many_members(),
        "packing.npz": other_packing(),
        "cells.csv": b"a,y\n" + b'"1\n2","2\n3",' * (400 << 10),  # a row that goes on, line by line
        "wide.csv": b"y," + b",".join(b"%d" % i for i in range(250_000)) + b"\n",
        "name.csv": b"y," + b"a" * 100_000 + b",%s\n" % b",".join(b"%d" % i for i in range(60)),
    }


def large_files() -> dict[str, bytes]:
    """Files whose contents come close to what the test allows, and which are read."""
    return {
        "floats.npz": npz_bomb("<f4", (3 << 10, 1024), 3 << 10, 12),
        "lines.gz": gzip.compress(b"1\n0\n" * 100_000),
        "dense.gz": gzip.compress(b"1 1:1\n0 80000:1\n" * 40),
        "sparse.gz": gzip.compress(b"1 1:1\n0 800000:1\n" * 30_000),
        "entries.gz": gzip.compress(
            (b"1 " + b" ".join(b"%d:1" % i for i in range(1, 2000)) + b"\n0 1:2\n") * 300
        ),
        "rows.csv": b"a,b,y\n" + b"1,2,no\n3,4,yes\n" * 150_000,
        "wide.csv": b"y,%s\n" % b",".join(b"%d" % i for i in range(20_000))
        + b"".join(b"%d%s\n" % (k, b",0" * 20_000) for k in range(4)),
        "texts.csv": b"a,y,c\n" + b"".join(b"1,%d.5,%d\n" % (i, i % 7) for i in range(50_000)),
    }


LOWERED = 32 << 20
PROGRAM = """
import os, resource, sys
from pathlib import Path
import scipy.sparse, torch
from fedfw.data import images, limits, load_data
from fedfw.data.base import Columns

readers = {
    ".idx": lambda path: images.read_idx(path, 3),
    ".mat": lambda path: images.read_parts(path, 47),
    ".npz": lambda path: load_data(f"table:{path}", columns=Columns(target="y")),
    ".csv": lambda path: load_data(f"table:{path}", columns=Columns(target="y")),
}
warm = Path(sys.argv[2]).with_name("warm.txt")
warm.write_text("1 1:1\\n0 2:1\\n" * 5)  # what is loaded when a file is read is no part of its reading
load_data(f"libsvm:{warm}")
limits.LEAST = int(sys.argv[1])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + limits.LEAST + (16 << 20),) * 2)
for path in map(Path, sys.argv[2:]):
    if os.fork():  # every file has a process of its own: what one leaves behind is no part of another's reading
        os.wait()
        continue
    try:
        readers.get(path.suffix, lambda path: load_data(f"libsvm:{path}"))(path)
        print(f"{path} was read", flush=True)
    except (ValueError, MemoryError) as error:
        print(f"{error!r}" if isinstance(error, MemoryError) else error, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is used"
)
def test_bombs_are_refused_within_the_limit_in_bytes_of_memory(tmp_path: Path) -> None:
    """The process may take little more than the limit: a reader that needs more ends with a
    MemoryError.
    """
    paths = []
    for name, content in [
        *bombs().items(),
        *((f"near-{name}", content) for name, content in large_files().items()),
    ]:
        assert 4 * len(content) < LOWERED
        paths.append(tmp_path / name)
        paths[-1].write_bytes(content)
    done = run_python(["-c", PROGRAM, str(LOWERED), *paths])
    assert len(done.stdout.splitlines()) == len(paths), done.stderr
    lines = dict(zip(paths, done.stdout.splitlines(), strict=True))
    for path, line in lines.items():
        assert line.startswith(str(path))
        if path.name.startswith("near-"):
            assert line == f"{path} was read"
        else:
            assert "expected" in line or "cannot be read" in line
    needed = {path.name for path, line in lines.items() if "its reader needs" in line}
    assert needed >= {
        "large.idx",
        "lies.mat",
        "line.gz",
        "dense.gz",
        "name.csv",
        "columns.gz",
        "entries.gz",
        "large.npz",
        "targets.npz",
    }


def test_a_reader_works_where_no_system_says_how_much_memory_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reader, "_STATUS", tmp_path / "statm")
    monkeypatch.setattr("sys.argv", [])
    _reader.limit_memory()


@pytest.mark.usefixtures("in_this_process")
def test_the_limit_is_four_times_the_file_or_more_where_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEAST", 1000)
    path = tmp_path / "my.csv"
    path.write_text("a,y\n" + "1,0\n0,1\n" * 100)
    size = path.stat().st_size
    assert (limits.memory_limit(100), limits.memory_limit(size)) == (1000, 4 * size)
    message = (
        r"my\.csv: its reader needs .* of memory for x of shape \(200, 1\), expected at most 0\.0 "
        r"MiB \(4 times the file's size or 0\.0 MiB, the larger, unless more is allowed\): where "
        r"the file is trusted, allow more by data-memory in consent\.toml or by "
        r"FEDFW_DATA_MEMORY=1"
    )
    own = Columns(target="y")
    with pytest.raises(limits.MemoryLimitError, match=message):
        load_data(f"table:{path}", columns=own)
    with limits.allow_memory(0.001):
        assert len(load_data(f"table:{path}", columns=own).train) == 160
    with limits.allow_memory(None), pytest.raises(limits.MemoryLimitError):
        load_data(f"table:{path}", columns=own)
    monkeypatch.setenv(limits.VARIABLE, "1")
    assert len(load_data(f"table:{path}", columns=own).train) == 160
    for text in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv(limits.VARIABLE, text)
        with pytest.raises(
            ValueError, match=f"FEDFW_DATA_MEMORY='{text}', expected a number of GiB such as 8"
        ):
            load_data(f"table:{path}", columns=own)


# --- LIBSVM, MATLAB, archives and downloads, one by one
# -----------------------------------------------------------


@pytest.mark.usefixtures("in_this_process")
def test_libsvm_indices_from_zero_comments_and_queries(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"# a comment\n1 qid:7 0:0.5 2:1e-3\n\n-1 1:2 # more\n")
    rows, marks = read_libsvm(path)
    assert rows.toarray().tolist() == [[0.5, 0, np.float32(1e-3)], [0, 2, 0]]
    assert marks.tolist() == [1, -1]
    path.write_bytes(b"1 1:0.5\n-1 3:2\n")
    assert read_libsvm(path)[0].toarray().tolist() == [[0.5, 0, 0], [0, 0, 2]]
    with pytest.raises(
        ValueError, match="2 samples of 3 features, 2 kinds of labels, expected 2 of at most 2"
    ):
        read_libsvm(path, features=2, samples=2)


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_arrays_are_what_scipy_wrote(compressed: bool, tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    value: dict[str, Any] = {"a": array, "inner": {"b": array[0].T.astype("f4")}, "../c": "text"}
    savemat(tmp_path / "a.mat", {"other": array[0], "wanted": value}, do_compression=compressed)
    path = tmp_path / "a.mat"
    found = read_isolated("mat", path, "wanted.a", "wanted.inner.b")
    assert np.array_equal(found["wanted.a"], array)
    assert np.array_equal(found["wanted.inner.b"], array[0].T)
    assert found["wanted.inner.b"].dtype == np.float32
    for name in ("wanted.d", "missing.a", "wanted.a.b"):
        with pytest.raises(ValueError, match=rf"a\.mat cannot be read: expected an array {name}"):
            read_isolated("mat", path, name)
    with pytest.raises(ValueError, match=r"a\.mat cannot be read: Object arrays cannot be saved"):
        read_isolated("mat", path, "wanted.inner", "wanted")


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (entry("/etc/one.bin"), "member '/etc/one.bin', expected a path within the archive"),
        (entry("a/../../one.bin"), "expected a path within the archive"),
        (
            entry("one.bin", tarfile.SYMTYPE, "/etc/passwd"),
            "member 'one.bin' is a link or a device, expected a file",
        ),
        (entry("one.bin", tarfile.LNKTYPE, "two.bin"), "is a link or a device"),
        (entry("one.bin", tarfile.CHRTYPE), "is a link or a device"),
        (entry("one.bin", tarfile.FIFOTYPE), "is a link or a device"),
    ],
)
def test_tar_members_that_are_no_plain_files(member: tarfile.TarInfo, message: str) -> None:
    archive = io.BytesIO(tarred({}, entry("two.bin"), member))
    with pytest.raises(ValueError, match=message):
        list(members(archive, False, {"one.bin"}))


@pytest.mark.parametrize("name", ["/etc/one.bin", "../one.bin"])
def test_zip_members_outside_and_links(name: str) -> None:
    with pytest.raises(ValueError, match="expected a path within the archive"):
        list(members(io.BytesIO(zipped({name: b"x"})), True, {"one.bin"}))
    link = zipfile.ZipInfo("one.bin")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ValueError, match="is a link or a device"):
        list(members(file, True, {"one.bin"}))


@pytest.mark.parametrize("name", SOURCES)
def test_sources_have_a_sha256_and_are_on_the_web(name: str) -> None:
    for source in SOURCES[name].sources:
        assert re.fullmatch("[0-9a-f]{64}", source.sha256)
        assert source.url.startswith(("https://", "http://"))


def test_redirects_never_leave_https() -> None:
    def follow(start: str, target: str) -> str:
        request = urllib.request.Request(start)
        new = _SafeRedirects().redirect_request(
            request, io.BytesIO(), 302, "Found", Message(), target
        )
        return new.full_url

    assert follow("https://one/a", "https://two/a") == "https://two/a"
    assert follow("http://one/a", "http://two/a") == "http://two/a"
    for target in ("http://two/a", "ftp://two/a"):
        with pytest.raises(OSError, match=f"redirected to {target}, expected https"):
            follow("https://one/a", target)
