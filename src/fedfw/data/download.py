"""Downloads: verified before they take their place, so that a file is whole or not there.

pooch has no limits for the size of a download and of archives' members, and would be a dependency
for every user.
"""

import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any, BinaryIO

from tqdm import tqdm

from fedfw._version import __version__
from fedfw.data.archives import UNREADABLE, members, reason
from fedfw.data.sources import Source, has_checksum

LARGEST = 2 << 30  # bytes of a download; EMNIST's archive, the largest, has 0.7 GB
_CHUNK = 1 << 18
_SHOWN_S = 0.5  # between two looks at how far a download is
_SILENCE_S = 60  # a server that sends nothing for so long is given up


def download(source: Source, folder: Path) -> bool:
    """Put a file, or the members of an archive, into the folder; False where they were there
    already.

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
        except UNREADABLE as error:
            raise ValueError(f"{source.url}: no readable archive: {reason(error)}") from None
        except OSError as error:
            raise OSError(f"{source.url}: {error}") from None
    return True


def is_present(source: Source, folder: Path) -> bool:
    """Return whether the file is there with the right checksum; of an archive, whether all members
    are there.
    """
    if source.members:
        return all(
            any((folder / subfolder / name).is_file() for subfolder in ("", source.inside))
            for name in source.members
        )
    path = folder / source.file
    return path.is_file() and has_checksum(path, source.sha256)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to anything else."""

    def redirect_request(
        self, req: urllib.request.Request, *rest: Any
    ) -> urllib.request.Request | None:
        """Follow a redirect, but never from https to a connection that others can read."""
        target: str = rest[-1]
        if req.type == "https" and not target.startswith("https:"):
            raise OSError(f"redirected to {target}, expected https")
        return super().redirect_request(req, *rest)


def _fetch(source: Source, file: IO[bytes]) -> None:
    """Write the contents of a source's URL to a file; raises OSError for a failed or too large
    download, and ValueError for a wrong checksum.
    """
    request = urllib.request.Request(source.url, headers={"User-Agent": f"fedfw/{__version__}"})
    digest = hashlib.sha256()
    done = 0
    try:
        with urllib.request.build_opener(_SafeRedirects).open(
            request, timeout=_SILENCE_S
        ) as response:
            total = response.length  # None where the server does not say it
            with tqdm(
                desc=source.file, total=total, unit="B", unit_scale=True, mininterval=_SHOWN_S
            ) as bar:
                while chunk := response.read(_CHUNK):
                    file.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    # The length that the server states is refused with the first chunk.
                    if max(done, total or 0) > LARGEST:
                        raise OSError(f"{max(done, total or 0)} bytes, expected at most {LARGEST}")
                    bar.update(len(chunk))
    except (OSError, http.client.HTTPException) as error:
        raise OSError(f"{source.url}: {error}") from None
    if digest.hexdigest() != source.sha256:
        raise ValueError(
            f"{source.url}: SHA-256 {digest.hexdigest()} of {done} bytes, expected {source.sha256}"
        )


def _unpack(source: Source, archive: IO[bytes], folder: Path) -> None:
    """Write the wanted members of an archive into a folder, by their base names, all of them or
    none: each has a temporary file, which takes its place when the context ends without an error.
    """
    missing = set(source.members)
    with ExitStack() as written:
        for name, content in members(archive, source.file.endswith(".zip"), missing):
            with content:
                copyfileobj(content, written.enter_context(_replacing(folder / name)), _CHUNK)
            missing.remove(name)
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` that takes its place when all went well, and disappears
    otherwise.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
