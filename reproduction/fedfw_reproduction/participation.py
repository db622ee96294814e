"""The paper's figures 2 and 3: how many clients take part."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.config import RunConfig
from fedfw.report.document import Document
from fedfw_reproduction.cells import Cell, Central, residuals
from fedfw_reproduction.figures import Claim, curves_csv, draw, mean_curve, panels
from fedfw_reproduction.lab import Results, Task
from fedfw_reproduction.protocols import Scale

PROBABILITIES = (0.1, 0.2, 0.5, 1.0)
PENALTIES = (0.01, 0.001)
_DATA = "synthetic:published-10"


def convex(p: float, penalty: float, scale: Scale) -> Cell:
    """Softmax regression, l1 ball."""
    config = RunConfig.of(
        dataset=_DATA,
        model="mclr",
        partition="labels:3",
        constraint="l1:10",
        algorithm="fedfw",
        penalty=penalty,
        participation=p,
        rounds=scale.long_rounds,
    )
    return Cell(config, seeds=scale.seeds, samples=scale.samples, every=5)


def network(p: float, algorithm: str, scale: Scale) -> Cell:
    """Two hidden layers, l2 ball, lam_t = 1e-3 in every round, the step size of the non-convex schedule."""
    rounds = scale.long_rounds
    config = RunConfig.of(
        dataset=_DATA,
        model="mlp",
        partition="labels:3",
        constraint="l2:10",
        algorithm=algorithm,
        penalty=1e-3,
        momentum=0.0,
        schedule=f"constant:{(p * rounds + 1) ** (-2 / 3):.6f}",
        participation=p,
        rounds=rounds,
    )
    return Cell(config, seeds=scale.seeds, samples=scale.samples, every=5)


def tasks(scale: Scale) -> list[Task]:
    cells = [convex(p, penalty, scale) for p in PROBABILITIES for penalty in PENALTIES]
    return [
        *map(Central.of, cells),
        *cells,
        *(network(p, algorithm, scale) for p in PROBABILITIES for algorithm in ("fedfw", "fedfw+")),
    ]


def show(scale: Scale, results: Results, page: Document) -> None:
    for name, title, cells in (
        ("participation-convex", "softmax regression, l1 ball of radius 10", _convex_panels(scale)),
        ("participation-network", "two hidden layers, l2 ball of radius 10, lam_t = 0.001", _network_panels(scale)),
    ):
        figure, axes = panels(4)
        shown = {}
        for (label, group), (loss, accuracy) in zip(cells.items(), (axes[:2], axes[2:]), strict=True):
            for p, cell in group.items():
                draw(loss, results[cell], "test_loss", f"p = {p:g}")
                draw(accuracy, results[cell], "accuracy", f"p = {p:g}")
                shown[f"{label}, p = {p:g}"] = results[cell]
            loss.set(title=f"{label}: test loss", xlabel="round")
            accuracy.set(title=f"{label}: test accuracy", xlabel="round")
        axes[0].legend()
        page.plot(figure, f"Participation: {title}", curves_csv(shown, ("test_loss", "loss", "accuracy")), name)


def claims(scale: Scale, results: Results) -> list[Claim]:
    far = {
        label: [mean(residuals(results[cell], results[Central.of(cell)])) for cell in group.values()]
        for label, group in _convex_panels(scale).items()
    }
    losses = {
        label: [mean_curve(results[cell], "loss")[-1] for cell in group.values()]
        for label, group in _network_panels(scale).items()
    }
    ordered = all(a >= 0.95 * b for values in (far | losses).values() for a, b in pairwise(values))
    found = "; ".join(f"{label}: residual {_listed(values)}" for label, values in far.items())
    found += "; " + "; ".join(f"{label}, network: loss {_listed(values)}" for label, values in losses.items())
    faster = Claim(
        "More participation converges faster (p = 0.1, 0.2, 0.5, 1; within 5 %)", ordered, found, "Participation"
    )
    factors = {label: values[0] / values[-1] for label, values in far.items()}
    ratios = "; ".join(f"{label}: residual at p = 0.1 is {f:.2f} times that at p = 1" for label, f in factors.items())
    same = max(factors.values()) / min(factors.values()) < 1.5
    text = "lam_0 does not change the effect of p (the two ratios within a factor of 1.5)"
    return [faster, Claim(text, same, ratios, "Participation")]


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _convex_panels(scale: Scale) -> dict[str, dict[float, Cell]]:
    return {f"lam_0 = {lam:g}": {p: convex(p, lam, scale) for p in PROBABILITIES} for lam in PENALTIES}


def _network_panels(scale: Scale) -> dict[str, dict[float, Cell]]:
    return {ALGORITHMS[a].title: {p: network(p, a, scale) for p in PROBABILITIES} for a in ("fedfw", "fedfw+")}
