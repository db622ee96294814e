"""What privacy costs: accuracy at equal (eps, delta) by private selection, by noise and an oracle,
and by DP-SGD.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, mean, stdev
from typing import Any

from fedfw.config import (
    RunConfig,
    build_algorithm,
    build_problem,
    completed,
    grid_points,
    merge,
    run_options,
)
from fedfw.problems import Problem
from fedfw.simulation import Simulation
from fedfw.tuning import HELD_OUT, Trial, search
from fedfw_reproduction.cells import Grid, data_of, device_of, placed
from fedfw_reproduction.document import Document, csv_text
from fedfw_reproduction.figures import Claim, Done, all_run, panels
from fedfw_reproduction.lab import Json, Site
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.schema import Identity, configuration, identity

DELTA, FINALISTS = 1e-5, 6
PROBLEMS = {
    "a9a, logistic regression, l1:10": ("a9a", "logistic", "l1:10"),
    "Ten of 1,000 features matter, logistic regression, l1:10": (
        "sparse:1000",
        "logistic",
        "l1:10",
    ),
    "MNIST, softmax regression, l1:10": ("mnist", "mclr", "l1:10"),
    "MNIST, softmax regression, l2:10": ("mnist", "mclr", "l2:10"),
}
# Bounds on the entries and on the length of a sample's gradient, and step sizes. No entry exceeds 1
# here; the length begins at about 2 on a9a, 16 on sparse and 9 on MNIST.
RANGES = {
    "a9a": ((0.1, 0.3, 1.0), (0.3, 1.0, 3.0), (0.1, 0.5, 2.5, 12.5)),
    "sparse:1000": ((0.03, 0.1, 0.3), (1.0, 3.0, 10.0), (0.5, 2.5, 12.5, 62.5)),
    "mnist": ((0.1, 0.3, 1.0), (1.0, 3.0, 10.0), (0.1, 0.5, 2.5, 12.5)),
}
SELECTION, NOISE, DP_SGD = (
    "FedFW, private selection",
    "FedFW, Gaussian noise and oracle",
    "projected FedAvg, DP-SGD",
)


@dataclass(frozen=True)
class PrivateCell:
    """One method at one budget: its grid tried on lent samples, the best run with several seeds.

    The whole grid is tried with noise from seed 0, the best few with more: one draw of noise can
    flatter. The noise comes from seeds, so that the study repeats; a real run draws it from the
    operating system.

    Parameters
    ----------
    config : RunConfig
        It names its algorithm. Data folder, device, seed and privacy are filled in where and when
        it runs.
    eps : float
        The budget; infinite for clipping without noise.
    grid : tuple
        What is tried: rounds, the bound ``clip`` on a sample's gradient, and options of the
        algorithm.
    seeds : int
        How many runs of the best point.
    samples : int or None
        Keep only so many training (and test) samples; None for all.
    mechanism : str
        Where the noise goes, see `fedfw.privacy`.
    draws : int
        How many draws of noise the best few points are tried with.
    """

    config: RunConfig
    eps: float
    grid: Grid
    seeds: int
    samples: int | None
    mechanism: str
    draws: int

    @property
    def title(self) -> str:
        c = self.config
        return f"{c.algorithm} ({self.mechanism}), {c.dataset}, {c.constraint}, eps {self.eps:g}"

    @property
    def weight(self) -> float:
        cost = 1.0 if self.config.dataset == "mnist" else 0.1
        tried: int = sum(dict(self.grid)["rounds"])
        return cost * (12 * tried + 60 * self.seeds)

    def identity(self) -> Identity:
        return identity(
            "private run",
            configuration=configuration(self.config),
            eps=self.eps,
            grid=dict(self.grid),
            seeds=self.seeds,
            samples=self.samples,
            mechanism=self.mechanism,
            draws=self.draws,
        )

    def compute(self, site: Site) -> Json:
        config = placed(self.config, site)
        lent = build_problem(config, data_of(config, self.samples), HELD_OUT).to(device_of(config))
        trials = self._trials(config, lent, dict(self.grid), noise_seed=0)
        few = sorted(trials, key=lambda trial: trial.rank("loss"))[:FINALISTS]
        more = range(1, self.draws)
        finals = [
            fmean([trial.rank("loss"), *(self._again(config, lent, trial, seed) for seed in more)])
            for trial in few
        ]
        best = few[finals.index(min(finals))].choice
        tried = [{"choice": t.choice, "held_out_loss": t.held_out_loss} for t in trials]
        finalists = [
            {"choice": t.choice, "held_out_loss": loss} for t, loss in zip(few, finals, strict=True)
        ]
        runs = [self._run(config, best, seed) for seed in range(self.seeds)]
        return {"chosen": best, "trials": tried, "finalists": finalists, "runs": runs}

    def _promise(self, clip: float, seed: int) -> str:
        return f"eps={self.eps},delta={DELTA},clip={clip},mechanism={self.mechanism},not-private-seed={seed}"

    def _trials(
        self, config: RunConfig, problem: Problem, axes: dict[str, Sequence[Any]], noise_seed: int
    ) -> list[Trial]:
        data, found = data_of(config, self.samples), []
        for rounds, clip in product(axes.pop("rounds"), axes.pop("clip")):
            private = replace(config, rounds=rounds, privacy=self._promise(clip, noise_seed))
            trials = [trial for _, trial in grid_points(private, data, axes)]
            points = search(problem, trials, float(rounds * config.local_steps))
            found += [
                replace(trial, choice=trial.choice | {"rounds": rounds, "clip": clip})
                for trial in points
            ]
        return found

    def _again(self, config: RunConfig, problem: Problem, trial: Trial, noise_seed: int) -> float:
        """The same point with other noise."""
        point: dict[str, Sequence[Any]] = {name: (value,) for name, value in trial.choice.items()}
        return self._trials(config, problem, point, noise_seed)[0].rank("loss")

    def _run(self, config: RunConfig, choice: dict[str, Any], seed: int) -> Json:
        """What a choice gives on the test data."""
        options = {name: value for name, value in choice.items() if name != "clip"}
        config = replace(config, seed=seed, privacy=self._promise(choice["clip"], seed))
        data = data_of(config, self.samples)
        config = completed(merge(config, options, "grid"), data)
        config = replace(config, eval_every=config.rounds)
        problem, algorithm = build_problem(config, data), build_algorithm(config)
        last = Simulation(problem, algorithm, run_options(config)).run().history[-1]
        spent = last.epsilon
        return {
            "accuracy": last.accuracy,
            "test_loss": last.test_loss,
            "epsilon": None if spent is None or math.isinf(spent) else spent,
        }


def budgets(scale: Scale) -> tuple[float, ...]:
    return (1.0, 8.0, math.inf) if scale.quick else (0.5, 1.0, 2.0, 4.0, 8.0, math.inf)


def methods(name: str, scale: Scale) -> dict[str, tuple[RunConfig, Grid, str]]:
    """Each with a grid of the same size: rounds, the bound on a sample's gradient, and what else it
    depends on.
    """
    dataset, model, constraint = PROBLEMS[name]
    base = RunConfig.of(
        dataset=dataset, model=model, constraint=constraint, partition="iid", clients=10
    )
    rounds = (5, 20) if scale.quick else (10, 30, 100)
    pulls: tuple[Any, ...] = (
        ("theory:0.01", "theory:1") if constraint.startswith("l1") else ("theory:0.1", "theory:3")
    )
    oracle = replace(base, algorithm="fedfw")
    with_oracle: Grid = (("rounds", rounds), ("penalty", pulls), ("momentum", (0.0, 0.9)))
    entries, lengths, steps = RANGES[dataset]
    with_steps: Grid = (("rounds", rounds), ("lr", steps))
    length: Grid = (("clip", lengths),)
    found = {
        NOISE: (oracle, with_oracle + length, "gaussian"),
        DP_SGD: (replace(base, algorithm="fedavg"), with_steps + length, "auto"),
    }
    if constraint.startswith("l1"):
        found = {SELECTION: (oracle, (*with_oracle, ("clip", entries)), "auto"), **found}
    return found


def cells_of(name: str, scale: Scale) -> dict[str, dict[float, PrivateCell]]:
    """By method and budget."""
    return {
        method: {
            eps: PrivateCell(
                config,
                eps=eps,
                grid=grid,
                seeds=2 if scale.quick else 5,
                samples=2000 if scale.quick else None,
                mechanism=mechanism,
                draws=1 if scale.quick else 3,
            )
            for eps in budgets(scale)
        }
        for method, (config, grid, mechanism) in methods(name, scale).items()
    }


def cells(scale: Scale) -> dict[str, dict[str, dict[float, PrivateCell]]]:
    """By problem, method and budget."""
    return {name: cells_of(name, scale) for name in PROBLEMS}


Found = Mapping[str, Mapping[str, Mapping[float, Done]]]


def _accuracies(done: Done) -> list[float]:
    return [100 * run["accuracy"] for run in done.result["runs"]]


def _losses(done: Done) -> list[float]:
    return [run["test_loss"] for run in done.result["runs"]]


def _shown(done: Done) -> str:
    losses, values = _losses(done), _accuracies(done)
    return f"{mean(losses):.3f} ± {stdev(losses):.3f}; {mean(values):.1f} ± {stdev(values):.1f}"


def _chosen(done: Done) -> str:
    chosen = done.result["chosen"]
    rest = ", ".join(f"{key} {value}" for key, value in chosen.items() if key != "rounds")
    return f"{chosen['rounds']} rounds, {rest}"


def show(scale: Scale, problems: Found, page: Document) -> None:
    a_cell = next(iter(next(iter(next(iter(problems.values())).values())).values())).task
    tried, seeds, draws = (
        math.prod(len(values) for _, values in a_cell.grid),
        a_cell.seeds,
        a_cell.draws,
    )
    page.text(
        f"Test loss and test accuracy in per cent, mean and deviation over {seeds} seeds, at equal (eps, {DELTA:g}) "
        f"for each of ten clients' samples, IID. Every method tries {tried} settings at each budget, rounds and the "
        "bound at which samples' gradients are clipped among them (in the largest entry for selection, in l2 for "
        "Gaussian noise), and is tuned by the loss on lent samples: all settings with one draw of noise, the best "
        f"{FINALISTS} with {draws}. eps = inf clips and adds no noise. Seeds are draws of noise and of "
        "who holds what, not of data. Tuning itself is not accounted for."
    )
    for name, found in problems.items():
        if not all_run(found):
            page.text(f"{name}: not run: no data")
            continue
        for cell_of, header in ((_shown, f"{name}: eps"), (_chosen, "chosen at eps")):
            rows = [
                [f"{eps:g}", *(cell_of(row[eps]) for row in found.values())]
                for eps in budgets(scale)
            ]
            page.table((header, *found), rows)
        figure, axes = panels(2)
        numbers = []
        ticks = range(len(budgets(scale)))
        for axis, values_of, label in zip(
            axes, (_losses, _accuracies), ("test loss", "test accuracy (%)"), strict=True
        ):
            for method, row in found.items():
                values = [values_of(done) for done in row.values()]
                axis.errorbar(
                    ticks,
                    [mean(v) for v in values],
                    [stdev(v) for v in values],
                    marker="o",
                    label=method,
                )
                pairs = zip(row, values, strict=True)
                numbers += [
                    (label, method, eps, seed, v)
                    for eps, each in pairs
                    for seed, v in enumerate(each)
                ]
            axis.set_xticks(ticks, [f"{eps:g}" for eps in budgets(scale)])
            axis.set(xlabel="eps", ylabel=label, title=name)
        axes[0].legend(fontsize="x-small")
        slug = "-".join(PROBLEMS[name][::2]).replace(":", "-")
        data = csv_text(("measure", "method", "eps", "seed", "value"), numbers)
        page.plot(figure, f"What privacy costs: {name}", data, slug)


def claims(scale: Scale, problems: Found) -> list[Claim]:
    """Where choosing a vertex privately beats noise on the gradient."""
    found = []
    for name, rows in problems.items():
        if SELECTION not in rows or not all_run(rows):
            continue
        finite = [eps for eps in budgets(scale) if math.isfinite(eps)]
        loss = {m: {eps: mean(_losses(row[eps])) for eps in finite} for m, row in rows.items()}
        wins = [
            eps
            for eps in finite
            if loss[SELECTION][eps] <= min(loss[NOISE][eps], loss[DP_SGD][eps])
        ]
        best, tried = (", ".join(f"{eps:g}" for eps in some) for some in (wins, finite))
        where = f"best at eps {best or 'none'} of {tried}"
        claim = f"Private selection has the least test loss: {name}"
        found.append(Claim(claim, len(wins) == len(finite), where, "What privacy costs"))
    return found
