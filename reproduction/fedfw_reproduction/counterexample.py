"""Why averaging local Frank-Wolfe steps is not enough: f_1 = (x-3)^2, f_2 = (x+1)^2 on [-1, 1],
best at 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedfw import ALGORITHMS
from fedfw.sets import Box
from fedfw.simulation import Simulation, simulate
from fedfw.testing import two_quadratics
from fedfw_reproduction.document import Document, csv_text
from fedfw_reproduction.figures import Claim, Done, panels
from fedfw_reproduction.lab import Json, Site
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.schema import Identity, algorithm, identity


@dataclass(frozen=True)
class Path:
    """xbar round by round."""

    algorithm: str
    penalty: float | None
    rounds: int
    weight: float = 0.5

    @property
    def title(self) -> str:
        return f"counterexample, {self.algorithm}"

    @property
    def label(self) -> str:
        title = ALGORITHMS[self.algorithm].title
        return title if self.penalty is None else f"{title}, lam_0 = {self.penalty:g}"

    def identity(self) -> Identity:
        return identity(
            "counterexample",
            algorithm=algorithm(self.algorithm),
            penalty=self.penalty,
            rounds=self.rounds,
        )

    def compute(self, site: Site) -> Json:
        options = {} if self.penalty is None else {"penalty": self.penalty}
        path: list[float] = []

        def note(simulation: Simulation) -> None:
            path.append(float(simulation.server.xbar))

        algorithm = ALGORITHMS[self.algorithm](Box(-1.0, 1.0), **options)
        simulate(
            two_quadratics(), algorithm, rounds=self.rounds, eval_every=self.rounds, callbacks=note
        )
        return {"xbar": path}


def cells(scale: Scale) -> list[Path]:
    return [
        Path("naive", penalty=None, rounds=1000),
        *(Path("fedfw", penalty=lam, rounds=1000) for lam in (0.1, 0.3, 1.0)),
        Path("fedfw+", penalty=1.0, rounds=1000),
    ]


def show(scale: Scale, found: list[Done], page: Document) -> None:
    figure, (axis,) = panels(1, 4.2)
    rows = []
    for i, done in enumerate(found):
        path: Path = done.task
        away = [max(1 - x, 1e-9) for x in done.result["xbar"]]
        t = range(2, len(away) + 2)
        axis.loglog(t, away, color=f"C{i}", label=path.label)
        if path.algorithm == "fedfw" and path.penalty is not None:
            lam = path.penalty
            axis.loglog(t, [2 / (2 + lam * math.sqrt(s + 1)) for s in t], ":", color=f"C{i}")
        rows += [(path.label, s, value) for s, value in zip(t, away, strict=True)]
    axis.set(xlabel="round", ylabel="1 - xbar")
    axis.legend(fontsize="small")
    caption = "The counterexample: distance from the best point; dotted: what the fixed point of the penalty says"
    page.plot(figure, caption, csv_text(("setting", "round", "1 - xbar"), rows), "counterexample")


def claims(scale: Scale, found: list[Done]) -> list[Claim]:
    stuck, *_, plus = (done.result["xbar"][-1] for done in found)
    ends = f"averaged local steps end at {stuck:.3f}, FedFW+ at {plus:.4f}; the best point is 1"
    return [
        Claim(
            "Local Frank-Wolfe with averaging fails",
            abs(stuck) < 0.01 and 1 - plus < 0.001,
            ends,
            "Counterexample",
        )
    ]
