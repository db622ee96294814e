"""Finished runs that are read from their folders, without their data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfw.report.tables import human_bytes
from fedfw.rounds.folders import FACTS, HISTORY, MODEL
from fedfw.rounds.records import History, read_history

KEYS = ("algorithm", "constraint", "stopped", "lower_bound", "certificate", "fedfw")
"""The facts of a run that its folder holds beside history and model."""


@dataclass(frozen=True)
class SavedRun:
    """A run that was read from a folder: its history and its parameters, without data.

    Parameters
    ----------
    folder : Path
        Where it was read from.
    history : History
        A record of each round.
    parameters : mapping of str to Tensor
        The trained parameters by name, as `torch.nn.Module.state_dict` has them.
    algorithm, constraint, stopped, certificate : str
        What was run on which set, why it ended and what the lower bound rests on; empty where the
        folder does not say.
    lower_bound : float or None
        The best proven lower bound on the optimum.
    fedfw : str
        The version that wrote the folder.

    Examples
    --------
    >>> import tempfile
    >>> import fedfw
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.FedFWPlus("box:-1,1"), rounds=5)
    >>> saved = fedfw.load_run(run.save(f"{tempfile.mkdtemp()}/run"))
    >>> len(saved.history), saved.history[-1].loss == run.history[-1].loss
    (5, True)
    """

    folder: Path
    history: History
    parameters: Mapping[str, Tensor]
    algorithm: str = ""
    constraint: str = ""
    stopped: str = ""
    certificate: str = ""
    lower_bound: float | None = None
    fedfw: str = ""

    def __repr__(self) -> str:
        """Return the folder, the method, and how the run ended."""
        loss = self.history.last("loss")
        lines = [
            f"SavedRun in {self.folder}",
            f"  {self.algorithm or 'unknown algorithm'} on {self.constraint or 'an unknown set'}",
            f"  {len(self.history)} rounds ({self.stopped or 'end unknown'})",
        ]
        if loss is not None:
            lines.append(f"  loss {loss:.4g}")
        lines.append(f"  sent up {human_bytes(self.history.total('bytes_up'))}")
        return "\n".join(lines)

    def load_into(self, model: nn.Module) -> nn.Module:
        """Copy the trained parameters into a module and return it in evaluation mode.

        Parameters
        ----------
        model : torch.nn.Module
            Of the same architecture as the trained one.

        Returns
        -------
        torch.nn.Module
            The same object.
        """
        model.load_state_dict(dict(self.parameters))
        return model.eval()

    def plot(self, path: str | Path | None = None) -> Any:
        """Return a matplotlib figure of the run, saved to ``path`` as well if one is given."""
        from fedfw.report.plots import plot_runs, save_figure

        figure = plot_runs({self.algorithm or self.folder.name: self.history})
        if path is not None:
            save_figure(figure, Path(path))
        return figure


def load_run(folder: str | Path) -> SavedRun:
    """Read a finished run from a folder: one that `Run.save` wrote, or the ``out`` of a run.

    Parameters
    ----------
    folder : path
        The run folder.

    Returns
    -------
    SavedRun
        Its history and parameters. The data are not part of it.

    Raises
    ------
    ValueError
        If the folder holds no finished run.

    Examples
    --------
    >>> import fedfw
    >>> fedfw.load_run("no-such-folder")
    Traceback (most recent call last):
        ...
    ValueError: no-such-folder holds no finished run: it has no history.jsonl
    """
    path = Path(folder)
    for name in (HISTORY, MODEL):
        if not (path / name).is_file():
            raise ValueError(f"{path} holds no finished run: it has no {name}")
    history = read_history(path / HISTORY)
    parameters = torch.load(path / MODEL, map_location="cpu", weights_only=True)
    return SavedRun(path, history, parameters, **_read_facts(path / FACTS, history))


def _read_facts(path: Path, history: History) -> dict[str, Any]:
    """Return the facts of a run by name; without their file, the lower bound in the history."""
    if not path.exists():
        return {"lower_bound": history.last("lower_bound")}
    try:
        facts = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged, expected JSON: {error}") from None
    if not isinstance(facts, dict):
        raise ValueError(f"{path} is damaged, expected a JSON object")
    return {name: facts[name] for name in KEYS if name in facts}
