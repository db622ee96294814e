"""Progress of a run: a bar on a terminal, or lines in a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

from fedfw.report.tables import human_bytes
from fedfw.simulation.callbacks.base import Callback

if TYPE_CHECKING:
    from fedfw.simulation.result import Run
    from fedfw.simulation.simulator import Simulation

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

    on_all_ranks = True  # so that no rank waits for another one; rank 0 alone shows something

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._bar: Any = None

    def after_round(self, simulation: Simulation) -> bool | None:
        """Update the bar, which begins with the first round that ends."""
        if not simulation.ranks.first:
            return None
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
    """Return the round, the latest measures and the bytes sent up, in one line."""
    latest = simulation.history.last
    bound = simulation.best_bound
    if bound == simulation.problem.floor:  # nothing was proven
        bound = None
    measures = (
        ("loss", latest("loss"), ".4f"),
        ("accuracy", latest("accuracy"), ".3f"),
        ("concordance", latest("concordance"), ".3f"),
        ("gap", latest("gap"), ".2e"),
        ("optimum >=", bound, ".4f"),
        ("epsilon", latest("epsilon"), ".3f"),
    )
    parts = [f"{label} {value:{form}}" for label, value, form in measures if value is not None]
    return "  ".join(
        [
            f"round {simulation.t}/{simulation.options.rounds}",
            *parts,
            f"{human_bytes(simulation.history.total('bytes_up'))} up",
        ]
    )
