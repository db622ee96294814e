"""Packed files, and members of .zip and .tar.gz archives: plain files of a sensible size and name,
or none.
"""

import gzip
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

LARGEST = 2 << 30  # bytes of a member; EMNIST's largest has 0.65 GB
UNREADABLE = (
    *(ValueError, EOFError, KeyError, IndexError, OverflowError, RuntimeError),
    *(zipfile.BadZipFile, gzip.BadGzipFile, tarfile.TarError, zlib.error, struct.error),
)
"""The errors that Python's modules for archives raise for damaged bytes."""


def reason(error: BaseException) -> str:
    """Return an error's text on one line: zipfile quotes whole files in some of its messages."""
    return " ".join(str(error).split())[:200]


@contextmanager
def open_packed(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """Open a file that is gzipped or not; damaged packing is a ValueError that names the file."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"  # the first bytes of every gzip file
        file.seek(0)
        try:
            yield gzip.GzipFile(fileobj=file) if packed else file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged: {error}") from None


def members(archive: IO[bytes], is_zip: bool, wanted: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield base names and contents of the wanted files, in any folder of the archive.

    A wanted member that is a link or a device, whose path is absolute or has .. in it, or that is
    larger than `LARGEST` is a ValueError. Other members are passed over.
    """
    if is_zip:
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                name = PurePosixPath(info.filename).name
                if name in wanted and not info.is_dir():
                    # The upper half has the mode, as Unix has it; 0 where another system packed.
                    kind = stat.S_IFMT(info.external_attr >> 16)
                    _check(info.filename, kind in (0, stat.S_IFREG), info.file_size)
                    yield name, zipped.open(info)
    else:
        with tarfile.open(fileobj=archive, mode="r:gz") as tarred:
            for member in tarred:
                name = PurePosixPath(member.name).name
                if name in wanted and not member.isdir():
                    _check(member.name, member.isreg(), member.size)
                    content = tarred.extractfile(member)
                    assert content is not None
                    yield name, content


def _check(name: str, is_file: bool, size: int) -> None:
    """Refuse a member that would be written elsewhere, is no plain file, or is too large."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"member {name!r}, expected a path within the archive")
    if not is_file:
        raise ValueError(f"member {name!r} is a link or a device, expected a file")
    if not 0 <= size <= LARGEST:
        raise ValueError(f"member {name!r} has {size} bytes, expected at most {LARGEST}")
