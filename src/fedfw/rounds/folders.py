"""The run folder: history, model, plots and checkpoints, each replaced in one piece, by one process
at a time.

``journal-T`` says what happened after round T, entry by entry: with checkpoint T it gives the
rounds that follow.
"""

import io
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfw._version import __version__
from fedfw.portable import CLOSE_ON_EXEC, sync_folder
from fedfw.rounds.checkpoints import (
    SUFFIX,
    DamagedCheckpointError,
    load_checkpoint,
    packed,
    save_checkpoint,
    unpacked,
)
from fedfw.rounds.files import (
    FolderLock,
    lock_folder,
    make_private_folder,
    name_in_errors,
    owner_only,
    remove_leftovers,
    write_atomically,
)
from fedfw.rounds.records import History

HISTORY = "history.jsonl"
MODEL = "model.pt"
PLOTS = "plots.png"
FACTS = "run.json"
_JOURNAL = "journal"
_MOST_ENTRIES = 100
"""Of a journal: they are repeated, round by round, when a run goes on."""
_SMALL_JOURNAL = 2**20
"""Bytes up to which a journal is no reason for a checkpoint."""


class RunFolder:
    """Where a run lives.

    Parameters
    ----------
    path : Path
        Made when the first file is written; refused if it holds a run already, unless ``resume``.
    resume : bool
        Whether the folder's run is to go on. The folder then belongs to this process at once; else
        from `claim`, or from the first file that is written.
    private : bool
        Whether only the files' owner may read history and model. Checkpoints are always so.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = RunFolder(Path(tempfile.mkdtemp()))
    >>> folder.latest() is None
    True
    """

    def __init__(self, path: Path, resume: bool = False, private: bool = False) -> None:
        """Check that the folder is new, or holds the run that is resumed; nothing is written."""
        self.path = path
        self._resume = resume
        self._private = private
        self._lock: FolderLock | None = None
        self._ours = resume  # whether what the folder holds is of this run
        self._journal: Journal | None = (
            None  # where the next round is written, if a checkpoint or a journal begins it
        )
        self._final = 0  # bytes of the history's file that will not change
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file, expected a folder for the run")
        if resume and not path.exists():
            raise ValueError(f"{path} is no run folder")
        for file in (*self._checkpoints(), path / HISTORY, path / MODEL):
            if file.is_dir():
                raise ValueError(f"{file} is a folder, expected a file of the run: move it away")
        self._refuse_another_run()
        if resume:
            self.claim()

    def _refuse_another_run(self) -> None:
        used = self._checkpoints() or any((self.path / name).exists() for name in (HISTORY, MODEL))
        if used and not self._ours:
            raise ValueError(f"{self.path} already holds a run: give another folder, or resume it")

    def claim(self) -> None:
        """Make the folder, keep other processes out of it until `release`, and remove what an
        interrupted write left.

        Raises
        ------
        ValueError
            If another process works there.
        """
        if self._lock is not None:
            return
        if self._private:
            make_private_folder(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self.path)
        self._refuse_another_run()  # another process may have begun one meanwhile
        self._ours = True
        remove_leftovers(self.path)

    def release(self) -> None:
        """Let other processes in; `claim` and `save` keep them out again."""
        self._lock = None

    def _checkpoints(self) -> list[Path]:
        found = self.path.glob(f"checkpoint-*{SUFFIX}")
        return sorted(path for path in found if path.stem.partition("-")[2].isdecimal())

    def _journals(self) -> list[Path]:
        return sorted(self.path.glob(f"{_JOURNAL}-*"))

    def newest_round(self) -> int:
        """The round of the newest checkpoint, damaged or not; 0 for none."""
        return max((_round_of(path) for path in self._checkpoints()), default=0)

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the tensors and JSON data of the newest checkpoint that is not damaged; None if
        there is none, or the run does not resume.
        """
        if not self._resume:
            return None
        for path in reversed(self._checkpoints()):
            try:
                return load_checkpoint(path)
            except DamagedCheckpointError as error:
                warnings.warn(f"{error}; going back to the one before it", stacklevel=2)
        return None

    def entries(self, t: int) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
        """Yield the tensors and JSON data of the rounds after round t from the journals, in order;
        `append` then writes behind them.

        Raises
        ------
        DamagedCheckpointError
            At an entry that is not as it was written; no journal is then gone on with.
        """
        self._journal = None
        journal = Journal(self._journal_after(t))
        while True:
            yield from journal.entries()
            t += journal.count
            # A journal's last round names the next journal, if there is one.
            if not journal.count or not self._journal_after(t).exists():
                break
            journal = Journal(self._journal_after(t))
        self._journal = journal

    def _journal_after(self, t: int) -> Path:
        return self.path / f"{_JOURNAL}-{t:08d}"

    def append(
        self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], history: History, nbytes: int
    ) -> bool:
        """Append a round to the journal and the history; return False where a checkpoint is due
        instead.

        ``nbytes`` is what a checkpoint may take: a journal that takes more is not worth going on
        with.
        """
        if self._journal is None:
            return False
        self.claim()
        self._journal.append(tensors, meta)
        lines = history.to_jsonl().encode()
        path = self.path / HISTORY
        opener = owner_only if self._private else None
        with (
            name_in_errors(path),
            open(path, "r+b" if path.exists() else "wb", opener=opener) as file,
        ):
            # Only lines that may have changed are written again.
            file.seek(self._final)
            file.write(lines[self._final :])
            file.truncate()
        self._final = lines.rfind(b"\n", 0, -1) + 1  # more may become known of the last round
        return self._journal.count < _MOST_ENTRIES and self._journal.size < max(
            _SMALL_JOURNAL, nbytes
        )

    def save(
        self, t: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], history: History
    ) -> None:
        """Write a checkpoint of round t and the history, and remove all but the two newest
        checkpoints with their journals.
        """
        self.claim()
        lines = history.to_jsonl()
        # Later rounds belong to the time before a run went back to an older checkpoint.
        for file in [*self._checkpoints(), *self._journals()]:
            if _round_of(file) > t or file == self._journal_after(t):
                file.unlink()
        save_checkpoint(
            self.path / f"checkpoint-{t:08d}{SUFFIX}", tensors, {**meta, "history": lines}
        )
        write_atomically(self.path / HISTORY, lines.encode(), private=self._private)
        newest = self._checkpoints()[-2:]
        for outdated in [*self._checkpoints(), *self._journals()]:
            if _round_of(outdated) < _round_of(newest[0]):
                outdated.unlink()
        self._journal = Journal(self._journal_after(t))
        self._final = 0

    def save_history(self, history: History) -> None:
        """Replace the history's file alone; what a resumed run begins from stays as it is."""
        self.claim()
        write_atomically(self.path / HISTORY, history.to_jsonl().encode(), private=self._private)

    def save_facts(self, facts: Mapping[str, Any]) -> None:
        """Write what a finished run was, beside its history and its model."""
        self.claim()
        text = json.dumps({**facts, "fedfw": __version__}, indent=2)
        write_atomically(self.path / FACTS, text.encode(), private=self._private)

    def save_model(self, model: nn.Module) -> None:
        """Write the model's parameters, as `torch.load` reads them."""
        self.claim()
        weights = io.BytesIO()
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, weights)
        write_atomically(self.path / MODEL, weights.getvalue(), private=self._private)


def _round_of(path: Path) -> int:
    """The round in the name of a checkpoint or a journal."""
    return int(path.stem.partition("-")[2])


_LENGTH = 8


class Journal:
    """The rounds since a checkpoint, appended round by round to one file.

    Each entry is its length (8 bytes) and what `checkpoints.packed` makes of tensors and JSON data,
    with its checksum. It is on disk before `append` returns. An entry whose end is missing was
    never completed, and is dropped. Everything else that is not as it was written is damage, and is
    reported.

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
        """Write one more entry behind those that were read or appended, in place of anything else
        in the file.
        """
        data = packed(tensors, meta)
        new = not self.path.exists()
        with name_in_errors(self.path):
            descriptor = owner_only(str(self.path), os.O_RDWR | os.O_CREAT | CLOSE_ON_EXEC)
            with open(descriptor, "r+b") as file:
                file.truncate(self.size)
                file.seek(self.size)
                # An entry is its length and its bytes; what an interrupted write left behind them
                # is cut off.
                file.write(len(data).to_bytes(_LENGTH, "little") + data)
                file.flush()
                os.fsync(file.fileno())
        if new:
            sync_folder(self.path.parent)
        self.count += 1
        self.size += _LENGTH + len(data)

    def entries(self) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
        """Yield the tensors and the JSON data of all entries, in order.

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
            # The write of this entry was interrupted.
            if end > len(data):
                return
            yield unpacked(data[begin:end], self.path)
            self.count += 1
            self.size = end
