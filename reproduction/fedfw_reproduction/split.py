"""Split constraints: weak clients answer with a simple ball around the set that the others keep.

A network with two hidden layers whose first matrix (100 x 784) is to have a nuclear norm of at most 20, the other
parameters in l2 balls of radius 10. Weak clients take the Frobenius ball of radius 20 for the nuclear one.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from fedfw.algorithms import FedFWPlus
from fedfw.config import RunConfig
from fedfw.report.document import Document, csv_text
from fedfw.sets import L2Ball, NuclearBall, Product
from fedfw.simulation import simulate
from fedfw_reproduction.cells import accuracies, columns_of, finals, placed, problem_of
from fedfw_reproduction.figures import panels
from fedfw_reproduction.lab import Json, Results, Site, Task, was_run
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.schema import Identity, algorithm, identity

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
_FIRST = "0.weight"


@dataclass(frozen=True)
class Weak:
    """FedFW+ with momentum on some digits of MNIST, so many of the ten clients weak."""

    share: float
    rounds: int
    seeds: int
    samples: int
    radius: float = 20.0
    penalty: float = 0.01
    momentum: float = 0.9
    schedule: str = "linear-decay:0.05"

    @property
    def title(self) -> str:
        return f"{self.share:.0%} weak clients"

    @property
    def weight(self) -> float:
        return 8.0 * self.rounds * self.seeds * self.samples / 60_000

    def identity(self) -> Identity:
        return identity(
            "weak clients",
            algorithm=algorithm("fedfw"),
            share=self.share,
            rounds=self.rounds,
            seeds=self.seeds,
            samples=self.samples,
            radius=self.radius,
            penalty=self.penalty,
            momentum=self.momentum,
            schedule=self.schedule,
        )

    def compute(self, site: Site) -> Json:
        runs = []
        for seed in range(self.seeds):
            config = RunConfig.of(dataset="mnist", model="mlp", partition="labels:3", seed=seed)
            problem = problem_of(placed(config, site), self.samples)
            D = Product({_FIRST: NuclearBall(self.radius), "*": L2Ball(10.0)})
            simple = Product({_FIRST: L2Ball(self.radius), "*": L2Ball(10.0)})
            weak = dict.fromkeys(range(round(self.share * problem.n)), simple)
            algorithm = FedFWPlus(D, penalty=self.penalty, momentum=self.momentum, schedule=self.schedule)
            run = simulate(
                problem, algorithm, rounds=self.rounds, relax=weak or None, eval_every=self.rounds, seed=seed
            )
            runs.append(columns_of(run) | {"seed": seed})
        return {"runs": runs}


def _weak(share: float, scale: Scale) -> Weak:
    return Weak(share, rounds=scale.rounds, seeds=scale.seeds, samples=scale.some)


def tasks(scale: Scale) -> list[Task]:
    return [_weak(share, scale) for share in SHARES]


def show(scale: Scale, results: Results, page: Document) -> None:
    found = {share: results[_weak(share, scale)] for share in SHARES}
    if not all(map(was_run, found.values())):
        page.text("not run: no data")
        return
    oracle = {share: mean(run["seconds"]["oracle"] for run in r["runs"]) for share, r in found.items()}
    far = {share: mean(finals(r, "distance")) for share, r in found.items()}
    figure, (accuracy, distance, seconds) = panels(3)
    accuracy.plot(SHARES, [100 * mean(finals(r, "accuracy")) for r in found.values()], "o-")
    accuracy.set(title="test accuracy % of the returned model", xlabel="share of weak clients")
    distance.plot(SHARES, list(far.values()), "o-")
    distance.set(title="distance of xbar from the set", xlabel="share of weak clients")
    seconds.plot(SHARES, list(oracle.values()), "o-")
    seconds.set(title="seconds in oracles", xlabel="share of weak clients", ylim=(0, None))
    rows = [(s, mean(finals(r, "accuracy")), far[s], oracle[s]) for s, r in found.items()]
    caption = f"Split constraints: nuclear ball, weak clients with a Frobenius ball; {scale.some} digits, 3 labels each"
    page.plot(figure, caption, csv_text(("weak", "accuracy", "distance", "oracle_seconds"), rows), "split")
    table = [
        (
            f"{s:.0%}",
            accuracies(finals(r, "accuracy")),
            f"{far[s]:.3g}",
            f"{oracle[s]:.2f}",
            f"{1 - oracle[s] / oracle[0.0]:.0%}",
        )
        for s, r in found.items()
    ]
    page.table(("weak clients", "accuracy %", "distance of xbar", "oracle seconds", "saved"), table)
