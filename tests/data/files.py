"""Small files in the publishers' formats, and where the real ones may be."""

import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedfw.data.sources import IDX_FILES

Array = npt.NDArray[Any]

DATA = Path(os.environ.get("FEDFW_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


def needs(*files: str) -> pytest.MarkDecorator:
    """Skip where the real files are not at hand."""
    return pytest.mark.skipif(
        not all((DATA / file).exists() for file in files), reason=f"{files[0]} is not at hand"
    )


def idx_bytes(array: Array) -> bytes:
    kind = {"uint8": 0x08, "int32": 0x0C}[array.dtype.name]
    shape = b"".join(side.to_bytes(4, "big") for side in array.shape)
    return (
        bytes([0, 0, kind, array.ndim])
        + shape
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


def zipped(files: dict[str, bytes]) -> bytes:
    """Return an archive of these files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    """Return a member of an archive: a file, a folder, a link or a device."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def tarred(files: dict[str, bytes], *members: tarfile.TarInfo) -> bytes:
    """Return an archive of these files and of members without contents."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            info = entry(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return data.getvalue()


def write_gz(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0))


def images(samples: int, seed: int = 0) -> Array:
    """(samples, 28, 28) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (samples, 28, 28), np.uint8)


def labels(samples: int, classes: int = 10) -> Array:
    """(samples,) uint8: 0, 1, 2, ..."""
    return (np.arange(samples) % classes).astype(np.uint8)


def write_mnist(folder: Path, train: int = 20, test: int = 10) -> None:
    for file, array in zip(
        IDX_FILES, (images(train), labels(train), images(test, 1), labels(test)), strict=True
    ):
        write_gz(folder / file, idx_bytes(array))
