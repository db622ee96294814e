"""The run folder: history, model, plots and checkpoints, each replaced in one piece."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfw.rounds.checkpoints import SUFFIX, DamagedCheckpointError, load_checkpoint, save_checkpoint
from fedfw.rounds.files import write_atomically
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
        Whether the folder's run is to go on.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = RunFolder(Path(tempfile.mkdtemp()))
    >>> folder.latest() is None
    True
    """

    def __init__(self, path: Path, resume: bool = False) -> None:
        self.path, self._resume = path, resume
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
        used = old or self._checkpoints() or any((path / name).exists() for name in (HISTORY, MODEL))
        if not resume and used:
            raise ValueError(f"{path} already holds a run: give another folder, or resume it")

    def _checkpoints(self) -> list[Path]:
        return sorted(self.path.glob(f"checkpoint-*{SUFFIX}"))

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
        lines = history.to_jsonl()
        for later in self._checkpoints():  # damaged ones of a run that went back
            if _round_of(later) > t:
                later.unlink()
        save_checkpoint(self.path / f"checkpoint-{t:08d}{SUFFIX}", tensors, {**meta, "history": lines})
        write_atomically(self.path / HISTORY, lines.encode())
        for old in self._checkpoints()[:-2]:
            old.unlink()

    def save_model(self, model: nn.Module) -> None:
        """Write the model's parameters, as `torch.load` reads them."""
        weights = io.BytesIO()
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, weights)
        write_atomically(self.path / MODEL, weights.getvalue())


def _round_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.partition("-")[2])
