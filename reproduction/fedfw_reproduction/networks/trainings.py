"""Single runs of a network, and the run that goes on from the best of some trials.

A run is a task of its own, so that a study goes on where it was after an interrupt, with at most a
run a process lost. Nothing here or in `fedfw_reproduction.networks.protocol` draws pictures or
needs more than torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

from fedfw.config import RunConfig, build_algorithm, build_problem, completed, run_options
from fedfw.errors import NonFiniteError
from fedfw.options import options_of
from fedfw.presets import ProblemOptions
from fedfw.problems import Problem
from fedfw.simulation import History, Record, Simulation
from fedfw.tuning import HELD_OUT
from fedfw_reproduction.cells import data_of, device_of, placed
from fedfw_reproduction.lab import Json, Results, Site, was_run
from fedfw_reproduction.schema import Identity, configuration, identity

_COSTS = {"mlp": 0.3, "maxmin-mlp": 0.5, "cnn": 1.0, "cnn-cifar": 1.0, "transformer": 2.0}
"""Seconds of a round beside each other, roughly, with five local steps."""
_SEEN = ("round", "test_loss", "accuracy", "distance", "certified")
Judged = Literal["accuracy", "test_loss"]
"""What a comparison goes by."""


@dataclass(frozen=True)
class Training:
    """One run with one seed.

    Parameters
    ----------
    config : RunConfig
        All of the run, its seed included; data folder and device are filled in where it runs.
    held_out : bool
        Whether every client lends a fifth of its training data, which take the place of the test
        data.
    every : int or None
        Rounds between two looks at the test data; None for the last round alone.
    """

    config: RunConfig
    held_out: bool = False
    every: int | None = None

    @property
    def title(self) -> str:
        c = self.config
        own = "".join(f", {name} {value}" for name, value in c.own)
        return f"{c.model} on {c.dataset}, {c.algorithm}{own}, {'held out' if self.held_out else f'seed {c.seed}'}"

    @property
    def weight(self) -> float:
        c = self.config
        return c.rounds * c.local_steps / 5 * _COSTS.get(c.model or "", 1.0)

    def identity(self) -> Identity:
        return identity(
            "training",
            configuration=configuration(self.config),
            held_out=self.held_out,
            every=self.every,
        )

    def compute(self, site: Site) -> Json:
        config = placed(self.config, site)
        problem = _problem(_problem_part(config), self.held_out)
        config = replace(
            completed(config, data_of(config, None)), eval_every=self.every or config.rounds
        )
        try:
            run = _Tested(problem, build_algorithm(config), run_options(config)).run()
        except NonFiniteError as error:
            return {"runs": [], "blew_up": str(error)}
        return {"runs": [{"seed": config.seed, "curve": columns_of(run.history)}]}


class _Tested(Simulation):
    """A run that is judged by test data alone: the loss of all clients' samples would cost more
    than its rounds.
    """

    @property
    def reports_loss(self) -> bool:
        return False


@dataclass(frozen=True)
class Best:
    """The run of the trial that did best, with another seed and all of the training data.

    Parameters
    ----------
    trials : tuple of Training
        To choose from; a single one is not run as a trial.
    by : "accuracy" or "test_loss"
        Of the samples that clients lent.
    seed : int
        Of the run.
    every : int or None
        Rounds between two looks at the test data.
    changes : tuple of pairs
        Options that the run has beside those of the trial, such as fewer rounds.
    """

    trials: tuple[Training, ...]
    by: Judged
    seed: int
    every: int | None = None
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def title(self) -> str:
        c = self.trials[0].config
        also = "".join(f", {name} {value}" for name, value in self.changes)
        return f"{c.model} on {c.dataset}, the best of {c.algorithm}{also}, seed {self.seed}"

    @property
    def weight(self) -> float:
        return self._of(self.trials[0]).weight

    @property
    def needs(self) -> tuple[Training, ...]:
        return self.trials if len(self.trials) > 1 else ()

    def settled(self, results: Results) -> Training:
        return self._of(self.chosen(results))

    def chosen(self, results: Results) -> Training:
        """The trial that did best; the first one where none gave a number."""
        if not self.needs:
            return self.trials[0]
        return min(self.trials, key=lambda trial: _rank(results[trial], self.by))

    def _of(self, trial: Training) -> Training:
        config = trial.config.having(seed=self.seed, **dict(self.changes))
        return replace(trial, config=config, held_out=False, every=self.every)


def _rank(result: Json, by: Judged) -> float:
    """The smaller, the better; infinite for a run that blew up or was not run."""
    if not was_run(result) or not result["runs"]:
        return math.inf
    value: float = result["runs"][0]["curve"][by][-1]
    return (-value if by == "accuracy" else value) if math.isfinite(value) else math.inf


def columns_of(history: History) -> dict[str, list[Any]]:
    """The rounds that looked at the test data as columns; bytes and seconds are those of all rounds
    so far.

    Parameters
    ----------
    history : History
        Of a run.

    Examples
    --------
    >>> from fedfw.simulation import History, Record
    >>> history = History([Record(round=1, bytes_up=3), Record(round=2, bytes_up=4, accuracy=0.5, test_loss=1.0)])
    >>> found = columns_of(history)
    >>> found["round"], found["accuracy"], found["bytes_up"]
    ([2], [0.5], [7])
    """
    looks = [at for at, record in enumerate(history) if record.test_loss is not None]
    rows = [asdict(history[at]) for at in looks]
    columns = {name: [row.get(name) for row in rows] for name in _SEEN}
    summed = {
        way: list(accumulate(getattr(record, way) for record in history))
        for way in ("bytes_up", "bytes_down")
    }
    summed["seconds"] = list(accumulate(_seconds(record) for record in history))
    return columns | {name: [totals[at] for at in looks] for name, totals in summed.items()}


def _seconds(record: Record) -> float:
    """How long a round took, its evaluation apart."""
    return sum(spent for part, spent in (record.seconds or {}).items() if part != "evaluation")


def all_seeds(results: Results, runs: Sequence[Best]) -> Json:
    """The runs of several seeds, as many as there are, as one result, or why there is none."""
    found = [results[run] for run in runs]
    done = [result for result in found if was_run(result)]
    return {"runs": [run for result in done for run in result["runs"]]} if done else found[0]


def _problem_part(config: RunConfig) -> RunConfig:
    """What the problem depends on: runs that differ in the rest alone share it, and what a GPU
    recorded for it.
    """
    chosen = {name: getattr(config, name) for name in options_of(ProblemOptions)}
    return RunConfig.of(**chosen, seed=config.seed, device=config.device)


@lru_cache(maxsize=4)  # the trials' problem and those of three seeds
def _problem(config: RunConfig, held_out: bool) -> Problem:
    return build_problem(config, data_of(config, None), HELD_OUT if held_out else 0.0).to(
        device_of(config)
    )
