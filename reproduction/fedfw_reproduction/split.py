"""Split constraints: weak clients answer with a simple ball around the set that the others keep.

A network with two hidden layers whose first matrix (100 x 784) is to have a nuclear norm of at most
20, the other parameters in l2 balls of radius 10. Weak clients take the Frobenius ball of radius 20
for the nuclear one.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedfw.algorithms import FedFWPlus
from fedfw.config import RunConfig
from fedfw.sets import L2Ball, NuclearBall, Product
from fedfw.simulation import simulate
from fedfw_reproduction.cells import columns_of, placed, problem_of
from fedfw_reproduction.lab import Json, Site
from fedfw_reproduction.schema import Identity, algorithm, identity

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
            config = RunConfig.of(
                dataset="mnist", model="mlp", clients=10, partition="labels:3", seed=seed
            )
            problem = problem_of(placed(config, site), self.samples)
            D = Product({_FIRST: NuclearBall(self.radius), "*": L2Ball(10.0)})
            simple = Product({_FIRST: L2Ball(self.radius), "*": L2Ball(10.0)})
            weak = dict.fromkeys(range(round(self.share * problem.n)), simple)
            algorithm = FedFWPlus(
                D, penalty=self.penalty, momentum=self.momentum, schedule=self.schedule
            )
            run = simulate(
                problem,
                algorithm,
                rounds=self.rounds,
                relax=weak or None,
                eval_every=self.rounds,
                seed=seed,
            )
            runs.append(columns_of(run) | {"seed": seed})
        return {"runs": runs}
