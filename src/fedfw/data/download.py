"""Downloads: verified before they take their place, so that a file is whole or not there."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from typing import IO, BinaryIO, TextIO

from fedfw._version import __version__
from fedfw.data.sources import Source

_md5 = partial(hashlib.md5, usedforsecurity=False)
_CHUNK = 1 << 18
_SILENCE_S = 60  # a server that sends nothing for so long is given up


def download(source: Source, folder: Path) -> bool:
    """Put a file, or the members of an archive, into the folder; False where they were there already.

    A failure raises a ValueError or an OSError that names the URL, and leaves the folder as it was.
    """
    if is_present(source, folder):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    if not source.members:
        with _replacing(folder / source.file) as file:
            _fetch(source, file)
        return True
    with tempfile.TemporaryFile(dir=folder) as archive:
        _fetch(source, archive)
        archive.seek(0)
        try:
            _unpack(source, archive, folder)
        except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
            raise ValueError(f"{source.url}: no readable archive: {error}") from None
    return True


def is_present(source: Source, folder: Path) -> bool:
    """Whether the file is there with the right checksum; of an archive, whether all members are there."""
    if source.members:
        return all(any((folder / at / name).is_file() for at in ("", source.inside)) for name in source.members)
    path = folder / source.file
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return hashlib.file_digest(file, _md5).hexdigest() == source.md5


class Meter:
    """How far a download is: a terminal sees one line that changes, a file a line every two seconds."""

    def __init__(self, what: str, total: int | None, stream: TextIO | None = None) -> None:
        self._what = what
        self._of = "" if total is None else f" of {total / 1e6:.1f}"
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._shown = time.monotonic()

    def show(self, done: int, last: bool = False) -> None:
        """``done`` bytes have come."""
        if not last and time.monotonic() - self._shown < (0.1 if self._live else 2.0):
            return
        self._shown = time.monotonic()
        line = f"{self._what}: {done / 1e6:.1f}{self._of} MB"
        self._stream.write(f"\r{line:<80}" + "\n" * last if self._live else line + "\n")
        self._stream.flush()


def _fetch(source: Source, file: IO[bytes]) -> None:
    """The bytes of the URL, all of them and with the right checksum."""
    request = urllib.request.Request(source.url, headers={"User-Agent": f"fedfw/{__version__}"})
    digest, done = _md5(), 0
    try:
        with urllib.request.urlopen(request, timeout=_SILENCE_S) as response:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
            meter = Meter(source.file, total)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                meter.show(done)
    except (OSError, http.client.HTTPException) as error:
        raise OSError(f"{source.url}: {error}") from None
    if total is not None and done != total:
        raise OSError(f"{source.url}: the connection ended after {done} of {total} bytes")
    if digest.hexdigest() != source.md5:
        raise ValueError(f"{source.url}: MD5 {digest.hexdigest()} of {done} bytes, expected {source.md5}")
    meter.show(done, last=True)


def _unpack(source: Source, archive: IO[bytes], folder: Path) -> None:
    """Write the wanted members, by their base names: no path in an archive leads out of the folder."""
    missing = set(source.members)
    for name, content in _members(archive, source.file.endswith(".zip"), missing):
        with content, _replacing(folder / name) as file:
            copyfileobj(content, file, _CHUNK)
        missing.remove(name)
    if missing:
        raise ValueError(f"{source.url}: the archive has no {', '.join(sorted(missing))}")


def _members(archive: IO[bytes], is_zip: bool, wanted: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    if is_zip:
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if (name := PurePosixPath(info.filename).name) in wanted and not info.is_dir():
                    yield name, zipped.open(info)
    else:
        with tarfile.open(fileobj=archive, mode="r:gz") as tarred:
            for member in tarred:
                if (name := PurePosixPath(member.name).name) in wanted and (content := tarred.extractfile(member)):
                    yield name, content


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside ``path`` that takes its place when all went well, and disappears otherwise."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
