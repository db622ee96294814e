"""Loggers: the numbers of every round on the screen, in a CSV file, TensorBoard or MLflow, while a
run goes on.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

from fedfw.report.tables import human_bytes
from fedfw.rounds.records import Record
from fedfw.simulation.callbacks.base import Callback

if TYPE_CHECKING:
    from fedfw.simulation.result import Run
    from fedfw.simulation.simulator import Simulation


def numbers_of(record: Record) -> dict[str, float]:
    """The numbers of a record by name, without those that were not evaluated; ``seconds`` is the
    sum of its parts.

    Examples
    --------
    >>> numbers_of(Record(round=2, loss=0.5, seconds={"oracle": 0.25, "rest": 0.5}))["seconds"]
    0.75
    """
    found = {f.name: getattr(record, f.name) for f in fields(Record)}
    found["seconds"] = None if record.seconds is None else sum(record.seconds.values())
    for radius, share in (found.pop("certified") or {}).items():
        found[f"certified_{radius}"] = share
    return {name: value for name, value in found.items() if value is not None}


class CSVLogger(Callback):
    """Writes a row a round to a CSV file, as soon as the round is done.

    Parameters
    ----------
    path : path
        The file; it is written anew when a run begins, and a run that is resumed begins with the
        rounds it has.

    Notes
    -----
    `fedfw.History.to_csv` writes a finished run, with the parts of ``seconds`` apart.

    Examples
    --------
    >>> import tempfile, fedfw
    >>> path = tempfile.mktemp()
    >>> algorithm = fedfw.FrankWolfe("box:-1,1")
    >>> run = fedfw.simulate(
    ...     fedfw.testing.two_quadratics(), algorithm, rounds=3, callbacks=fedfw.CSVLogger(path)
    ... )
    >>> [line.split(",")[:2] for line in open(path)]
    [['round', 'loss'], ['1', '4.0'], ['2', '4.0'], ['3', '4.0']]
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._names = [f.name for f in fields(Record) if f.name != "certified"]
        self._begun = False

    def after_round(self, simulation: Simulation) -> bool | None:
        """Append the round's line; the first call writes all rounds so far, anew."""
        fresh = not self._begun
        self._begun = True
        records = list(simulation.history) if fresh else [simulation.history[-1]]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "w" if fresh else "a", newline="") as file:
            writer = csv.DictWriter(file, self._names, extrasaction="ignore", lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerows(numbers_of(record) for record in records)
        return None


class TensorBoardLogger(Callback):
    """Shows the numbers of every round in TensorBoard.

    Parameters
    ----------
    writer : path or SummaryWriter
        The folder of the log, or a `torch.utils.tensorboard.SummaryWriter` of one's own, which
        stays open.

    Raises
    ------
    ImportError
        If a folder is given and the package tensorboard is not installed.

    Examples
    --------
    >>> import fedfw
    >>> class Printer:
    ...     def add_scalar(self, name, value, step):
    ...         if name == "loss":
    ...             print(name, value, step)
    >>> algorithm = fedfw.FrankWolfe("box:-1,1")
    >>> logger = fedfw.TensorBoardLogger(Printer())
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=2, callbacks=logger)
    loss 4.0 1
    loss 4.0 2
    """

    def __init__(self, writer: Any) -> None:
        """Open a writer for a folder, which `finish` closes; a writer of the user's stays open."""
        self._own = isinstance(writer, str | Path)
        if self._own:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise ImportError(
                    "TensorBoardLogger needs the package tensorboard: pip install tensorboard"
                ) from None
            writer = SummaryWriter(str(writer))
        self._writer = writer

    def after_round(self, simulation: Simulation) -> bool | None:
        """Write the round's numbers."""
        numbers = numbers_of(simulation.history[-1])
        step = int(numbers.pop("round"))
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        return None

    def finish(self, simulation: Simulation, run: Run) -> None:
        self.abandon(simulation)

    def abandon(self, simulation: Simulation) -> None:
        if self._own:
            self._writer.close()


class MLflowLogger(Callback):
    """Sends the numbers of every round to the active run of MLflow.

    Parameters
    ----------
    log_metrics : callable, optional
        Called as ``log_metrics(numbers, step=round)``; by default `mlflow.log_metrics`.

    Raises
    ------
    ImportError
        If nothing is given and the package mlflow is not installed.

    Examples
    --------
    >>> import fedfw
    >>> def log(numbers, step):
    ...     print(step, numbers["loss"])
    >>> algorithm = fedfw.FrankWolfe("box:-1,1")
    >>> logger = fedfw.MLflowLogger(log)
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=2, callbacks=logger)
    1 4.0
    2 4.0
    """

    def __init__(self, log_metrics: Callable[..., Any] | None = None) -> None:
        """Use the active run of MLflow where no function is given."""
        if log_metrics is None:
            try:
                import mlflow
            except ImportError:
                raise ImportError(
                    "MLflowLogger needs the package mlflow: pip install mlflow"
                ) from None
            log_metrics = mlflow.log_metrics
        self._log = log_metrics

    def after_round(self, simulation: Simulation) -> bool | None:
        """Log the round's numbers."""
        numbers = numbers_of(simulation.history[-1])
        step = int(numbers.pop("round"))
        self._log(numbers, step=step)
        return None


_IN_A_FILE = 2.0
_ON_A_TERMINAL = 0.1
"""Seconds between two updates."""


class Progress(Callback):
    """Shows how a run gets on: a bar on a terminal, a line every two seconds in a file.

    Parameters
    ----------
    stream : file, optional
        Where to; by default the standard error stream.
    """

    decides = False

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._bar: Any = None

    def after_round(self, simulation: Simulation) -> bool | None:
        """Update the bar, which begins with the first round that ends."""
        line = progress_line(simulation)
        if self._bar is None:
            live = self._stream.isatty()
            self._bar = tqdm(
                total=simulation.options.rounds,
                initial=simulation.t,
                desc=line,
                file=self._stream,
                mininterval=_ON_A_TERMINAL if live else _IN_A_FILE,
                dynamic_ncols=live,
                bar_format="{desc}  [{elapsed}<{remaining}]" + ("" if live else "\n"),
            )
        else:
            self._bar.set_description_str(line, refresh=False)
            self._bar.update()
        return None

    def finish(self, simulation: Simulation, run: Run) -> None:
        self.abandon(simulation)

    def abandon(self, simulation: Simulation) -> None:
        if self._bar is not None:
            self._bar.close()


def progress_line(simulation: Simulation) -> str:
    """Return what is worth knowing of the latest round, in one line."""
    latest = simulation.history.last
    shown = (
        ("loss", latest("loss"), ".4f"),
        ("accuracy", latest("accuracy"), ".3f"),
        ("concordance", latest("concordance"), ".3f"),
        ("gap", latest("gap"), ".2e"),
        ("optimum >=", _told(simulation), ".4f"),
        ("epsilon", latest("epsilon"), ".3f"),
    )
    parts = [f"{label} {value:{form}}" for label, value, form in shown if value is not None]
    return "  ".join(
        [
            f"round {simulation.t}/{simulation.options.rounds}",
            *parts,
            f"{human_bytes(simulation.history.total('bytes_up'))} up",
        ]
    )


def _told(simulation: Simulation) -> float | None:
    """The proven bound on the optimum, unless it is no more than what every such loss is never
    below.
    """
    return None if simulation.best_bound == simulation.problem.floor else simulation.best_bound
