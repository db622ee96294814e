"""The tasks: all settings of one method on one problem, looked at in rounds 1, 2, 3, ... that grow
geometrically.

A run's curve up to some round is what a shorter run gives, so three budgets of rounds take one run;
only steps that fall to zero at the end of a run need one for each budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from fedfw.config import RunConfig, build_algorithm, completed, run_options
from fedfw.errors import NonFiniteError
from fedfw.problems import Problem
from fedfw.simulation import Simulation
from fedfw_reproduction.cells import Cell, data_of, placed, problem_of
from fedfw_reproduction.frontier.methods import Setting, depends_on_horizon
from fedfw_reproduction.lab import Json, Site
from fedfw_reproduction.schema import Identity, configuration, identity, options

_GROWTH = 1.2  # of the rounds at which a run is looked at


@dataclass(frozen=True)
class Task:
    """All settings of one method on one problem.

    Parameters
    ----------
    config : RunConfig
        The problem and the algorithm's name.
    settings : tuple of Setting
        What is tried.
    budgets : tuple of int
        Rounds, rising. Runs take the last of them; those whose steps depend on it are run for each.
    samples : int or None
        Keep only so many samples; None for all.
    """

    config: RunConfig
    settings: tuple[Setting, ...]
    budgets: tuple[int, ...]
    samples: int | None = None

    @property
    def title(self) -> str:
        c = self.config
        return f"{c.algorithm}, {c.dataset}, {c.partition}, {c.constraint}"

    @property
    def weight(self) -> float:
        rounds = sum(sum(self._horizons(setting)) for setting in self.settings)
        return Cell(replace(self.config, rounds=rounds), seeds=1, samples=self.samples).weight

    def identity(self) -> Identity:
        return identity(
            "courses",
            configuration=configuration(self.config),
            settings=[options(setting) for setting in self.settings],
            budgets=self.budgets,
            samples=self.samples,
        )

    def compute(self, site: Site) -> Json:
        config = placed(self.config, site)
        problem = problem_of(config, self.samples)
        found = []
        for number, setting in enumerate(self.settings):
            for rounds in self._horizons(setting):
                wanted = config.having(rounds=rounds, eval_every=rounds, **dict(setting))
                found.append(
                    {"setting": number, "rounds": rounds} | _course(problem, wanted, self.samples)
                )
        return {"courses": found}

    def _horizons(self, setting: Setting) -> tuple[int, ...]:
        return self.budgets if depends_on_horizon(setting) else self.budgets[-1:]


def looks(rounds: int) -> list[int]:
    """The rounds at which a run is looked at.

    Examples
    --------
    >>> looks(12)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]
    """
    found = [1]
    while found[-1] < rounds:
        found.append(min(rounds, max(found[-1] + 1, int(found[-1] * _GROWTH))))
    return found


def _course(problem: Problem, config: RunConfig, samples: int | None) -> Json:
    """A run's curve, or why there is none."""
    wanted = set(looks(config.rounds))
    seen: list[tuple[int, float, float | None]] = []

    def look(simulation: Simulation) -> None:
        if simulation.t in wanted:
            test = problem.test(simulation.xbar)
            judged = (
                test.accuracy
                if test.accuracy is not None or test.loss is None
                else math.sqrt(test.loss)
            )
            seen.append((simulation.t, problem.value(simulation.xbar), judged))

    try:
        config = completed(config, data_of(config, samples))
        run = Simulation(
            problem, build_algorithm(config), run_options(config), callbacks=look
        ).run()
    except NonFiniteError:
        return {"failed": "blew up"}
    except ValueError as error:
        return {"failed": f"refused: {error}"}
    up, down = (
        list(accumulate(getattr(r, way) for r in run.history)) for way in ("bytes_up", "bytes_down")
    )
    curve: dict[str, list[Any]] = {
        "round": [t for t, _, _ in seen],
        "loss": [float(f"{loss:.8g}") for _, loss, _ in seen],
        "test": [None if judged is None else float(f"{judged:.5g}") for _, _, judged in seen],
        "up": [up[t - 1] for t, _, _ in seen],
        "down": [down[t - 1] for t, _, _ in seen],
    }
    return {"curve": curve}
