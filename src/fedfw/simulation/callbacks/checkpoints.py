"""Checkpoints: the run folder is brought up to date every few rounds, and gets model and plots at
the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedfw.rounds.folders import PLOTS, RunFolder
from fedfw.simulation.callbacks.base import Callback

if TYPE_CHECKING:
    from fedfw.simulation.result import Run
    from fedfw.simulation.simulator import Simulation


class Checkpoints(Callback):
    """Writes checkpoints and the history to a run folder.

    Parameters
    ----------
    folder : RunFolder or None
        Where they go; None for ranks that do not write, and help to bring the state of a run
        together.
    every : int
        Rounds between checkpoints; the last round always is one.
    """

    on_all_ranks = True

    def __init__(self, folder: RunFolder | None, every: int = 10) -> None:
        self.folder = folder
        self._every = every
        self._saved: int | None = None

    def before_round(self, simulation: Simulation) -> bool | None:
        if self.folder is not None:
            # before the first round, or what another process has there would be in the way later
            self.folder.claim()
        return None

    def after_round(self, simulation: Simulation) -> bool | None:
        ending = simulation.stopped is not None or simulation.t == simulation.options.rounds
        if simulation.t % self._every == 0 or ending:
            self._save(simulation)
        return None

    def _save(self, simulation: Simulation) -> None:
        """Save the state after this round."""
        meta = {"round": simulation.t, "fingerprint": simulation.fingerprint}
        state = simulation.state()
        if self.folder is not None:
            self.folder.save(simulation.t, state, meta, simulation.history)
        self._saved = simulation.t

    def finish(self, simulation: Simulation, run: Run) -> None:
        """Save the last state, the model, the facts and the plots, and release the folder."""
        # A callback that ends the run before a round leaves a state that was not saved.
        if simulation.t not in (self._saved, simulation.resumed_at):
            self._save(simulation)
        if self.folder is None:
            return
        # Matplotlib is slow to import, and seldom needed.
        from fedfw.report.plots import plot_runs, save_figure

        self.folder.save_model(run.model)
        self.folder.save_facts(run.facts())
        save_figure(
            plot_runs({simulation.algorithm.name: simulation.history}), self.folder.path / PLOTS
        )
        self.folder.release()

    def abandon(self, simulation: Simulation) -> None:
        """Release the folder after an error; refuted bounds are taken out of its history."""
        if self.folder is None:
            return
        if simulation.refuted and self._saved is not None:
            # The file has bounds from rounds before that one in which the run refuted them.
            self.folder.save_history(simulation.history)
        self.folder.release()
