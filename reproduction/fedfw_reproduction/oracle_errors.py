"""Oracles that err: how large an additive or a multiplicative error may be before FedFW breaks.

An answer s is replaced by s' = (1-theta) s + theta v, v a random extreme point, with theta (at most 1) such that

    multiplicative    <g, x_i - s'> = (1 - delta) <g, x_i - s>
    additive          <g, s'> = <g, s> + delta F(x^1) / n
    shrinking         <g, s'> = <g, s> + delta eta_t F(x^1) / n      (what the theory of Frank-Wolfe tolerates)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from fedfw.algorithms import FedFW
from fedfw.algorithms.base import Evidence, Gradient, Lmo, Message, Plan, State
from fedfw.atoms import Atom, Dense
from fedfw.config import RunConfig, constraint_of
from fedfw.randomness import generator
from fedfw.report.document import Document, csv_text
from fedfw.simulation import simulate
from fedfw_reproduction.cells import Cell, Central, columns_of, placed, problem_of, residuals
from fedfw_reproduction.figures import Claim, panels
from fedfw_reproduction.lab import Json, Results, Site, Task, was_run
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.schema import Identity, identity

KINDS = {
    "multiplicative": (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0),
    "additive": (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "shrinking": (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
}
SETS = {"l2:10": 3.0, "l1:10": 0.001}


@dataclass(frozen=True)
class SloppyFedFW(FedFW):
    """FedFW whose oracle errs.

    Parameters
    ----------
    kind : str
        multiplicative, additive or shrinking; see the top of the file.
    delta : float
        The size of the error.
    scale : float
        What additive errors are measured in.
    seed : int
        From which the random extreme points are drawn.
    """

    kind: str = "multiplicative"
    delta: float = 0.0
    scale: float = 1.0
    seed: int = 0

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        t, x = message.t, state["x"]

        def sloppy(g: Tensor) -> Atom:
            s = lmo(g)
            if not self.delta:
                return s
            draws = torch.randn(g.shape, generator=generator(self.seed, "sloppy", t), dtype=torch.float32)
            v = lmo(draws.to(g)).dense(g.dtype)
            best = s.dot(g)
            allowed = {
                "multiplicative": self.delta * ((x * g).sum(1, dtype=torch.float64) - best).clamp(min=0),
                "additive": torch.full_like(best, self.delta * self.scale),
                "shrinking": torch.full_like(best, self.delta * self.scale * plan.rates(t).eta),
            }[self.kind]
            apart = ((v * g).sum(1, dtype=torch.float64) - best).clamp(min=1e-300)
            theta = (allowed / apart).clamp(max=1.0).to(g.dtype)[:, None]
            exact = s.dense(g.dtype)
            return Dense(
                shape=s.shape, batched=True, precision=torch.float32, values=torch.lerp(exact, v, theta).float()
            )

        return super().client_step(plan, state, replace(message, wants_evidence=False), gradient, sloppy)


@dataclass(frozen=True)
class Sloppy:
    """FedFW with oracle errors of one kind and size."""

    cell: Cell
    kind: str
    delta: float

    @property
    def title(self) -> str:
        return f"{self.kind} oracle error {self.delta:g} on {self.cell.config.constraint}"

    @property
    def weight(self) -> float:
        return self.cell.weight

    def identity(self) -> Identity:
        return identity("oracle error", cell=self.cell.identity(), kind=self.kind, delta=self.delta)

    def compute(self, site: Site) -> Json:
        runs = []
        for seed in range(self.cell.seeds):
            config = placed(replace(self.cell.config, seed=seed), site)
            problem = problem_of(config, self.cell.samples)
            scale = problem.value(problem.start) / problem.n
            algorithm = SloppyFedFW(
                constraint_of(config),
                penalty=config.get("penalty"),
                momentum=0.0,
                kind=self.kind,
                delta=self.delta,
                scale=scale,
                seed=seed,
            )
            run = simulate(problem, algorithm, rounds=config.rounds, eval_every=config.rounds, seed=seed)
            runs.append(columns_of(run) | {"seed": seed})
        return {"runs": runs}


def sloppy(constraint: str, kind: str, delta: float, scale: Scale) -> Sloppy:
    config = RunConfig.of(
        dataset="mnist",
        model="mclr",
        partition="iid",
        constraint=constraint,
        algorithm="fedfw",
        penalty=f"theory:{SETS[constraint]:g}",
        rounds=scale.rounds,
    )
    return Sloppy(Cell(config, seeds=scale.seeds, samples=scale.some), kind, delta)


def tasks(scale: Scale) -> list[Task]:
    every = [sloppy(c, kind, delta, scale) for c in SETS for kind, sizes in KINDS.items() for delta in sizes]
    return [*every, *(Central.of(one.cell) for one in every)]


def show(scale: Scale, results: Results, page: Document) -> None:
    if not all(was_run(results[task]) for task in tasks(scale)):
        page.text("not run: no data")
        return
    figure, axes = panels(len(KINDS))
    rows: list[tuple[object, ...]] = []
    for axis, (kind, sizes) in zip(axes, KINDS.items(), strict=True):
        for constraint in SETS:
            far = [_residual(sloppy(constraint, kind, delta, scale), results) for delta in sizes]
            axis.plot(sizes[1:], far[1:], "o-", label=constraint)
            axis.axhline(far[0], ls=":", color=axis.lines[-1].get_color())
            rows += [(kind, constraint, delta, value) for delta, value in zip(sizes, far, strict=True)]
        axis.set(title=kind, xlabel="delta", ylabel="residual", xscale="log", yscale="log")
    axes[0].legend()
    setting = f"{scale.some} digits of MNIST, IID, residual after {scale.rounds} rounds"
    caption = f"Oracle errors of FedFW: {setting} (dotted: an exact oracle)"
    page.plot(figure, caption, csv_text(("kind", "set", "delta", "residual"), rows), "oracle-errors")
    page.text(
        "Multiplicative: delta is the share of the progress <g, x_i - s> that is lost. Additive: delta is in units of "
        "F(x^1)/n for each client, the same in every round; shrinking: that times the step size. "
        + _where_it_breaks(scale, results)
    )


def claims(scale: Scale, results: Results) -> list[Claim]:
    if not all(was_run(results[task]) for task in tasks(scale)):
        return [Claim("Frank-Wolfe is robust to oracle errors", None, "no data", "Oracle errors")]
    breaks = _where_it_breaks(scale, results)

    def harmless(kind: str, delta: float) -> bool:
        return all(
            _residual(sloppy(c, kind, delta, scale), results) < 1.5 * _residual(sloppy(c, kind, 0.0, scale), results)
            for c in SETS
        )

    return [
        Claim(
            "Frank-Wolfe is robust to multiplicative oracle errors (0.3 costs less than half of the residual on top)",
            harmless("multiplicative", 0.3),
            breaks,
            "Oracle errors",
        ),
        Claim(
            "... and to additive ones (0.1 F(x^1) in all, the same in every round, costs less than half on top)",
            harmless("additive", 0.1),
            breaks,
            "Oracle errors",
        ),
        Claim(
            "... if they shrink with the step size (0.1 F(x^1) eta_t in all)",
            harmless("shrinking", 0.1),
            breaks,
            "Oracle errors",
        ),
    ]


def _where_it_breaks(scale: Scale, results: Results) -> str:
    """The smallest error that doubles the residual, for each kind and set."""
    found = []
    for kind, sizes in KINDS.items():
        for constraint in SETS:
            far = {delta: _residual(sloppy(constraint, kind, delta, scale), results) for delta in sizes}
            worse = [delta for delta in sizes if far[delta] > 2 * far[0.0]]
            found.append(f"{kind}, {constraint}: {f'{worse[0]:g}' if worse else 'none of those tried'}")
    return "The smallest error that doubles the residual: " + "; ".join(found) + "."


def _residual(task: Sloppy, results: Results) -> float:
    return max(fmean(residuals(results[task], results[Central.of(task.cell)])), 1e-7)
