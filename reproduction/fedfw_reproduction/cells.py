"""The tasks that most tables and figures are made of: one algorithm on one problem, and that
problem's optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import torch

from fedfw.algorithms import PenalisedFW
from fedfw.config import (
    RunConfig,
    build_algorithm,
    build_problem,
    completed,
    constraint_of,
    grid_points,
    merge,
    run_options,
)
from fedfw.data import DATASETS, USUAL_CLIENTS, Data, Part, load_data
from fedfw.errors import NonFiniteError
from fedfw.models import MODELS
from fedfw.problems import Problem
from fedfw.simulation import Run, Simulation
from fedfw.solving import solve
from fedfw.tuning import HELD_OUT, Trial, search
from fedfw_reproduction.lab import Json, Site
from fedfw_reproduction.schema import ONCE_PLAIN, Identity, configuration, identity, options

Grid = tuple[tuple[str, tuple[Any, ...]], ...]
"""Keys of the configuration and the values to try, as a tuple: tasks are hashed."""
CURVE = ("round", "loss", "test_loss", "accuracy", "gap", "lower_bound", "consensus", "distance")
_MODEL_COSTS = {"mclr": 1.0, "logistic": 0.2, "mlp": 4.0, "cnn": 300.0}


@dataclass(frozen=True)
class Cell:
    """One algorithm on one problem: tuned on lent samples if there is a grid, then run with several
    seeds.

    Parameters
    ----------
    config : RunConfig
        It names its algorithm. Data folder, device and seed are filled in where and when it runs.
    grid : tuple
        Tried with seed 0, every point with the gradients that the configuration's rounds cost; the
        least loss on a fifth of the training data wins.
    seeds : int
        How many runs, with the seeds 0, 1, ...
    samples : int or None
        Keep only so many training (and test) samples, at random; None for all.
    every : int or None
        Rounds between evaluations; None for the last alone.
    epoch : bool
        Whether a round is one pass over a client's samples, in batches: sets the local steps.
    tune_share : float
        The share of the samples that the grid is tried on.
    """

    config: RunConfig
    grid: Grid = ()
    seeds: int = 3
    samples: int | None = None
    every: int | None = None
    epoch: bool = False
    tune_share: float = 1.0

    @property
    def title(self) -> str:
        c = self.config
        return f"{c.algorithm}, {c.model} on {c.dataset}, {c.partition}, {c.constraint}"

    @property
    def weight(self) -> float:
        points = prod(len(values) for _, values in self.grid) if self.grid else 0
        return (
            (points * self.tune_share + self.seeds)
            * self.config.rounds
            * _round_cost(self.config, self.samples)
        )

    def identity(self) -> Identity:
        return identity(
            "run",
            configuration=configuration(self.config),
            grid=options(self.grid),
            seeds=self.seeds,
            samples=self.samples,
            every=self.every,
            epoch=self.epoch,
            tune_share=self.tune_share,
        )

    def compute(self, site: Site) -> Json:
        config = placed(self.config, site)
        choice: dict[str, Any] = {}
        trials: list[Trial] = []
        if self.grid:
            trials = self._trials(config)
            best = min(trials, key=lambda trial: trial.rank("loss"))
            choice = best.choice
            config = replace(merge(config, choice, "grid"), rounds=best.rounds)
        runs = [self._run(replace(config, seed=seed)) for seed in range(self.seeds)]
        tried = [{"choice": t.choice, "held_out_loss": t.held_out_loss} for t in trials]
        return {"chosen": choice, "trials": tried, "runs": [run for run in runs if run is not None]}

    def _trials(self, config: RunConfig) -> list[Trial]:
        share = self.tune_share
        data = data_of(config, self.samples)
        if share < 1:
            data = shrunk(data, round(share * len(data.train)), seed=0)
            config = replace(
                config, batch_size=config.batch_size and max(1, round(share * config.batch_size))
            )
        problem = build_problem(config, data, HELD_OUT).to(device_of(config))
        config = self._with_epoch(config, problem)
        points = grid_points(config, data, dict(self.grid))
        return search(problem, [trial for _, trial in points], _passes(config, problem))

    def _with_epoch(self, config: RunConfig, problem: Problem) -> RunConfig:
        if not self.epoch:
            return config
        assert config.batch_size is not None
        return replace(config, local_steps=max(1, round(_mean_size(problem) / config.batch_size)))

    def _run(self, config: RunConfig) -> Json | None:
        problem = problem_of(config, self.samples)
        config = self._with_epoch(completed(config, data_of(config, self.samples)), problem)
        config = replace(config, eval_every=self.every or config.rounds)
        try:
            run = Simulation(problem, build_algorithm(config), run_options(config)).run()
        except NonFiniteError:
            return None
        return columns_of(run) | {"seed": config.seed}


@dataclass(frozen=True)
class Central:
    """The optimum of a cell's problem, from `fedfw.solve`, for each seed."""

    config: RunConfig
    seeds: int
    samples: int | None = None
    tol: float = 2e-3
    max_steps: int = 1000

    @classmethod
    def of(cls, cell: Cell) -> Central:
        """The optimum of this cell's problem: cells that differ in the algorithm alone share it."""
        c = cell.config
        problem = RunConfig.of(
            dataset=c.dataset,
            model=c.model,
            l2=c.l2,
            clients=c.clients,
            partition=c.partition,
            weights=c.weights,
            constraint=c.constraint,
            per_parameter=c.per_parameter,
        )
        if (
            c.rounds < 50
        ):  # nobody needs the optimum to three digits to judge a run that was cut short
            return cls(problem, seeds=cell.seeds, samples=cell.samples, tol=0.05, max_steps=60)
        return cls(problem, seeds=cell.seeds, samples=cell.samples)

    @property
    def title(self) -> str:
        c = self.config
        return f"optimum, {c.model} on {c.dataset}, {c.partition}, {c.constraint}"

    @property
    def weight(self) -> float:
        return 0.3 * self.max_steps * self.seeds * _round_cost(self.config, self.samples)

    def identity(self) -> Identity:
        return identity(
            "optimum",
            configuration=configuration(self.config),
            seeds=self.seeds,
            samples=self.samples,
            tol=self.tol,
            max_steps=self.max_steps,
        )

    def compute(self, site: Site) -> Json:
        found = []
        for seed in range(self.seeds):
            config = placed(replace(self.config, seed=seed), site)
            problem = problem_of(config, self.samples)
            optimum = solve(problem, constraint_of(config), tol=self.tol, max_steps=self.max_steps)
            found.append(
                {
                    "value": optimum.value,
                    "lower_bound": optimum.lower_bound,
                    "start_value": optimum.start_value,
                    "uncertainty": optimum.uncertainty,
                    "accuracy": problem.test(optimum.x).accuracy,
                }
            )
        return {"seeds": found}


# --- problems ---


def placed(config: RunConfig, site: Site) -> RunConfig:
    """Return the configuration at a site, with the defaults that results were kept with."""
    kind = MODELS.get(config.model or "")
    convex = kind is not None and kind.convex
    if convex and config.algorithm in ONCE_PLAIN and config.get("momentum") is None:
        config = config.having(momentum=0.0)
    return replace(config, data_dir=site.data_dir, device=site.device)


def device_of(config: RunConfig) -> torch.device:
    """Where a configuration computes."""
    return torch.device(config.device or "cpu")


@lru_cache(maxsize=2)
def _loaded(dataset: str, data_dir: str | Path | None, clients: int, seed: int) -> Data:
    return load_data(dataset, None if data_dir is None else Path(data_dir), clients, seed)


def data_of(config: RunConfig, samples: int | None) -> Data:
    """The data set, or so many samples of it."""
    drawn = config.dataset.startswith("synthetic")
    clients = config.clients or USUAL_CLIENTS
    data = _loaded(
        config.dataset, config.data_dir, clients if drawn else 1, config.seed if drawn else 0
    )
    return data if samples is None else shrunk(data, samples, config.seed)


def shrunk(data: Data, samples: int, seed: int) -> Data:
    """At most so many training samples, and test samples, drawn without replacement."""
    generator = torch.Generator().manual_seed(seed)

    def some(part: Part) -> Part:
        rows = torch.randperm(len(part), generator=generator)[:samples].sort().values
        owners = {kind: ids[rows] for kind, ids in part.owners.items()}
        return Part(part.inputs[rows], part.targets[rows], owners)

    return replace(data, train=some(data.train), test=some(data.test))


def problem_of(config: RunConfig, samples: int | None) -> Problem:
    """The problem of a configuration, where it is to be computed."""
    return build_problem(config, data_of(config, samples)).to(device_of(config))


def _passes(config: RunConfig, problem: Problem) -> float:
    """What the configuration's rounds cost in gradients of all of a client's samples."""
    share = 1.0 if config.batch_size is None else config.batch_size / _mean_size(problem)
    return config.rounds * config.local_steps * share


def _mean_size(problem: Problem) -> float:
    assert problem.losses.sizes is not None
    return float(problem.losses.sizes.double().mean())


def _round_cost(config: RunConfig, samples: int | None) -> float:
    """In rounds of softmax regression on MNIST."""
    entry = DATASETS[config.dataset.partition(":")[0]]
    train = entry.samples[0] if entry.samples else 20_000
    features = prod(entry.shape) if entry.shape else 60
    size = min(samples or train, train) * features / (60_000 * 784)
    # Rounds of small problems cost their overhead.
    return 0.05 + size * _MODEL_COSTS.get(config.model or "", 1.0)


# --- the results of runs ---


def columns_of(run: Run) -> Json:
    """The evaluated rounds of a run as columns, bytes summed up to each, and its seconds by their
    use.
    """
    history = run.history
    kept = [record for record in history if record.loss is not None]
    totals = {
        way: list(accumulate(getattr(r, way) for r in history))
        for way in ("bytes_up", "bytes_down")
    }
    curve: dict[str, list[Any]] = {name: [getattr(r, name) for r in kept] for name in CURVE}
    at = {record.round: index for index, record in enumerate(history)}
    for way, summed in totals.items():
        curve[way] = [summed[at[r.round]] for r in kept]
    seconds: dict[str, float] = {}
    for record in history:
        for part, spent in (record.seconds or {}).items():
            seconds[part] = seconds.get(part, 0.0) + spent
    lam_0 = run.algorithm.penalty if isinstance(run.algorithm, PenalisedFW) else 0.0
    return {"curve": curve, "seconds": seconds, "rounds": len(history), "lam_0": lam_0}
