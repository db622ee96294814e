"""The run folder: history, model, plots and checkpoints, each replaced in one piece, by one process at a time."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfw.rounds.checkpoints import SUFFIX, DamagedCheckpointError, load_checkpoint, save_checkpoint
from fedfw.rounds.files import FolderLock, lock_folder, remove_leftovers, write_atomically
from fedfw.rounds.records import History

HISTORY, MODEL, PLOTS = "history.jsonl", "model.pt", "plots.png"
_OLD_SUFFIX = ".bin"  # of version 0.1


class RunFolder:
    """Where a run lives.

    Parameters
    ----------
    path : Path
        Made when the first file is written; refused if it holds a run already, unless ``resume``.
    resume : bool
        Whether the folder's run is to go on. The folder then belongs to this process at once; else from `claim`, or
        from the first file that is written.
    private : bool
        Whether nobody but the files' owner may read history and model. Checkpoints are always so.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = RunFolder(Path(tempfile.mkdtemp()))
    >>> folder.latest() is None
    True
    """

    def __init__(self, path: Path, resume: bool = False, private: bool = False) -> None:
        self.path, self._resume, self._private = path, resume, private
        self._lock: FolderLock | None = None
        self._ours = resume  # whether what the folder holds is of this run
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file, expected a folder for the run")
        if resume and not path.is_dir():
            raise ValueError(f"{path} is no run folder")
        old = any(path.glob(f"checkpoint-*{_OLD_SUFFIX}"))
        if resume and old and not self._checkpoints():
            raise ValueError(
                f"{path} holds a run of fedfw 0.1, whose checkpoints this version does not read: finish it with "
                "fedfw 0.1, or run its config.toml anew"
            )
        for file in (*self._checkpoints(), path / HISTORY, path / MODEL):
            if file.is_dir():
                raise ValueError(f"{file} is a folder, expected a file of the run: move it away")
        self._refuse_another_run()
        if resume:
            self.claim()

    def _refuse_another_run(self) -> None:
        old = any(self.path.glob(f"checkpoint-*{_OLD_SUFFIX}"))
        used = old or self._checkpoints() or any((self.path / name).exists() for name in (HISTORY, MODEL))
        if used and not self._ours:
            raise ValueError(f"{self.path} already holds a run: give another folder, or resume it")

    def claim(self) -> None:
        """Make the folder, keep other processes out of it until `release`, and remove what an interrupted write left.

        Raises
        ------
        ValueError
            If another process works there.
        """
        if self._lock is not None:
            return
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

    def newest_round(self) -> int:
        """The round of the newest checkpoint, damaged or not; 0 for none."""
        return max((_round_of(path) for path in self._checkpoints()), default=0)

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest checkpoint that is not damaged, if the run is to go on."""
        if not self._resume:
            return None
        for path in reversed(self._checkpoints()):
            try:
                return load_checkpoint(path)
            except DamagedCheckpointError as error:
                warnings.warn(f"{error}; going back to the one before it", stacklevel=2)
        return None

    def save(self, t: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], history: History) -> None:
        """Write a checkpoint of round t and the history beside it; the two newest checkpoints are kept."""
        self.claim()
        lines = history.to_jsonl()
        for later in self._checkpoints():  # damaged ones of a run that went back
            if _round_of(later) > t:
                later.unlink()
        save_checkpoint(self.path / f"checkpoint-{t:08d}{SUFFIX}", tensors, {**meta, "history": lines})
        write_atomically(self.path / HISTORY, lines.encode(), private=self._private)
        for old in self._checkpoints()[:-2]:
            old.unlink()

    def save_model(self, model: nn.Module) -> None:
        """Write the model's parameters, as `torch.load` reads them."""
        self.claim()
        weights = io.BytesIO()
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, weights)
        write_atomically(self.path / MODEL, weights.getvalue(), private=self._private)


def _round_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.partition("-")[2])
