"""The run folder: history, model, plots and checkpoints, each replaced in one piece."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedfw.algorithms.base import Server
from fedfw.simulation.files import DamagedCheckpointError, load_checkpoint, save_checkpoint, write_atomically
from fedfw.simulation.history import History
from fedfw.simulation.memory import TouchedRows

if TYPE_CHECKING:
    from fedfw.simulation.engine import Simulation


class RunFolder:
    """Where a run lives.

    Parameters
    ----------
    path
        Created if it is missing; refused if it holds a run already, unless ``resume``.
    checkpoint_every
        Rounds between checkpoints; the two newest are kept.
    """

    def __init__(self, path: Path, resume: bool = False, checkpoint_every: int = 10) -> None:
        self.path, self.checkpoint_every, self._resume = path, checkpoint_every, resume
        if resume and not path.is_dir():
            raise ValueError(f"{path} is no run folder")
        used = [*path.glob("checkpoint-*.bin"), *(path / name for name in ("history.jsonl", "model.pt"))]
        if not resume and any(file.exists() for file in used):
            raise ValueError(f"{path} already holds a run: give another folder, or resume it")
        path.mkdir(parents=True, exist_ok=True)

    def _checkpoints(self) -> list[Path]:
        return sorted(self.path.glob("checkpoint-*.bin"))

    def newest_round(self) -> int:
        """Of the newest checkpoint, whole or not; 0 for none."""
        return max((int(path.stem.partition("-")[2]) for path in self._checkpoints()), default=0)

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest checkpoint that is whole."""
        if not self._resume:
            return None
        for path in reversed(self._checkpoints()):
            try:
                return load_checkpoint(path)
            except DamagedCheckpointError as error:
                warnings.warn(f"{error}; going back to the one before it", stacklevel=2)
        return None

    def after_round(self, simulation: Simulation, last: bool) -> None:
        """Write a checkpoint and the history so far, when it is time."""
        # A private run keeps every round: what it has spent must not be forgotten.
        if simulation.t % self.checkpoint_every and not last and simulation.private is None:
            return
        meta = {
            "round": simulation.t,
            "best_bound": simulation.best_bound,
            "dense_sums": simulation.dense_sums,
            "fingerprint": simulation.fingerprint,
        }
        self.save(simulation.t, tensors_of(simulation), meta, simulation.history)

    def save(self, t: int, tensors: dict[str, Tensor], meta: dict[str, Any], history: History) -> None:
        """A checkpoint of round t, and the history beside it."""
        lines = history.to_jsonl()
        for later in self._checkpoints():  # damaged ones of a run that went back
            if int(later.stem.partition("-")[2]) > t:
                later.unlink()
        save_checkpoint(self.path / f"checkpoint-{t:08d}.bin", tensors, meta | {"history": lines})
        write_atomically(self.path / "history.jsonl", lines.encode())
        for old in self._checkpoints()[:-2]:
            old.unlink()

    def finish(self, model: nn.Module, name: str, history: History) -> None:
        """Write the model and the plots."""
        weights = io.BytesIO()
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, weights)
        write_atomically(self.path / "model.pt", weights.getvalue())
        try:
            from fedfw.report.plots import plot_runs, save_figure
        except ImportError:  # plots are for people who have matplotlib
            return
        save_figure(plot_runs({name: history}), self.path / "plots.png")


def tensors_of(simulation: Simulation) -> dict[str, Tensor]:
    """Everything a checkpoint must hold to go on to the same bits."""
    held = {f"client.{name}": value for name, value in simulation.memory.tensors().items()}
    held |= {"server.xbar": simulation.server.xbar}
    held |= {f"server.{name}": value for name, value in simulation.server.vectors.items()}
    held |= {f"ledger.{name}": value for name, value in simulation.ledger.state().items()}
    bound = {"bound.numbers": simulation.bound.numbers, "bound.q": simulation.bound.q}
    held |= {name: value for name, value in bound.items() if value is not None}
    if simulation.private is not None:
        held["privacy.attended"] = simulation.attended
    return held


def restore(simulation: Simulation, folder: RunFolder) -> None:
    """Put a new simulation where the folder's newest checkpoint left off, if there is one."""
    found = folder.latest()
    if found is None:
        return
    tensors, meta = found
    if meta["fingerprint"] != simulation.fingerprint:
        raise ValueError(f"{folder.path} holds another run: {meta['fingerprint']}, not {simulation.fingerprint}")
    device = simulation.server.xbar.device

    def part(prefix: str) -> dict[str, Tensor]:
        skip = len(prefix)
        return {name[skip:]: value.to(device) for name, value in tensors.items() if name.startswith(prefix)}

    held = part("client.")
    if ("touched" in held) != isinstance(simulation.memory, TouchedRows):  # more rounds, and another form, than then
        simulation.memory = simulation.new_memory(simulation.server.xbar, "touched" in held)
    simulation.memory.load(held)
    server = part("server.")
    simulation.server = Server(server.pop("xbar"), server)
    simulation.ledger.load({name: value.cpu() for name, value in part("ledger.").items()})
    bound = part("bound.")
    simulation.bound.numbers, simulation.bound.q = bound.get("numbers"), bound.get("q")
    simulation.attended = part("privacy.").get("attended", simulation.attended).cpu()
    simulation.t, simulation.best_bound = meta["round"], meta["best_bound"]
    simulation.dense_sums = meta["dense_sums"]
    simulation.history = History.from_jsonl(meta["history"])
