"""A journal: what happened since a checkpoint, appended round by round.

Each entry is its length (8 bytes) and what `checkpoints.packed` makes of tensors and JSON data, with its checksum. It
is on disk before `append` returns. An entry whose end is missing was never completed, and is dropped. Everything else
that is not as it was written is damage, and said to be.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedfw.rounds.checkpoints import packed, unpacked
from fedfw.rounds.files import name_in_errors, owner_only

_LENGTH = 8


class Journal:
    """One file of entries.

    Parameters
    ----------
    path : Path
        The file; made when the first entry is written.

    Attributes
    ----------
    count, size : int
        Entries that were read or appended, and the bytes that they take.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "journal"
    >>> Journal(path).append({}, {"round": 1})
    >>> [meta["round"] for _, meta in Journal(path).entries()]
    [1]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = self.size = 0

    def append(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write one more entry behind those that were read or appended; what else is in the file gives way."""
        data = packed(tensors, meta)
        new = not self.path.exists()
        with name_in_errors(self.path):
            opened = owner_only(str(self.path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            with open(opened, "r+b") as file:
                file.truncate(self.size)
                file.seek(self.size)
                file.write(len(data).to_bytes(_LENGTH, "little") + data)
                file.flush()
                os.fsync(file.fileno())
        if new:
            _sync_folder(self.path.parent)
        self.count += 1
        self.size += _LENGTH + len(data)

    def entries(self) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
        """The tensors and the JSON data of all entries, in order.

        Raises
        ------
        DamagedCheckpointError
            At an entry whose bytes are not what was written; those before it have been given.
        """
        self.count = self.size = 0
        data = self.path.read_bytes() if self.path.exists() else b""
        while len(data) >= self.size + _LENGTH:
            begin = self.size + _LENGTH
            end = begin + int.from_bytes(data[self.size : begin], "little")
            if end > len(data):
                return
            yield unpacked(data[begin:end], self.path)
            self.count += 1
            self.size = end


def _sync_folder(folder: Path) -> None:
    """Let the folder's list of files be on disk, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
