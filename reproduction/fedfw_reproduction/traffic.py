"""Residual against bytes for every algorithm, each at the best of six points."""

from __future__ import annotations

from statistics import mean

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.config import RunConfig
from fedfw.report.document import Document
from fedfw.report.tables import human_bytes
from fedfw_reproduction.cells import Cell, Central, accuracies, average, finals, residuals, seconds_of
from fedfw_reproduction.figures import Claim, all_run, curves_csv, mean_curve, panels, residual_curve
from fedfw_reproduction.lab import Results, Task
from fedfw_reproduction.protocols import Scale, six

SETS = ("l2:10", "l1:10")
ENTRIES = (
    *((name, name, None) for name in ("feddr", "fedadmm", "fedavg", "fedda")),
    ("fedfw", "fedfw", 0.0),
    ("fedfw+", "fedfw+", 0.0),
    ("fedfw+, momentum", "fedfw+", 0.9),
    ("fedfw-anchored", "fedfw-anchored", None),
    ("frank-wolfe", "frank-wolfe", None),
)
_GRIDS = {"frank-wolfe": (("momentum", (0.0, 0.3, 0.5, 0.7, 0.8, 0.9)),)}


def cells(constraint: str, scale: Scale) -> dict[str, Cell]:
    """By label; some of MNIST, three labels a client."""
    found = {}
    for label, algorithm, momentum in ENTRIES:
        grid = _GRIDS.get(algorithm) or six(algorithm, constraint, "mclr", "mnist", momentum=bool(momentum))
        config = RunConfig.of(
            dataset="mnist",
            model="mclr",
            partition="labels:3",
            constraint=constraint,
            algorithm=algorithm,
            momentum=momentum,
            rounds=scale.rounds,
        )
        found[label] = Cell(config, grid=scale.thinned(grid), seeds=scale.seeds, samples=scale.some, every=2)
    return found


def tasks(scale: Scale) -> list[Task]:
    every = [cell for constraint in SETS for cell in cells(constraint, scale).values()]
    return [*every, *map(Central.of, every)]


def show(scale: Scale, results: Results, page: Document) -> None:
    for constraint in SETS:
        found = cells(constraint, scale)
        if not all_run([results[cell] for cell in found.values()]):
            page.text(f"{constraint}: not run: no data")
            continue
        figure, (up, both, rounds) = panels(3, 4.2)
        rows = []
        for i, (label, cell) in enumerate(found.items()):
            result, central = results[cell], results[Central.of(cell)]
            far = residual_curve(result, central)
            sent, received = mean_curve(result, "bytes_up"), mean_curve(result, "bytes_down")
            atoms_alone = not ALGORITHMS[cell.config.algorithm or ""].contract.shares
            style = {"color": f"C{i}", "ls": "-" if atoms_alone else "--"}
            up.loglog(sent, far, label=label, **style)
            both.loglog([a + b for a, b in zip(sent, received, strict=True)], far, **style)
            rounds.semilogy(mean_curve(result, "round"), far, **style)
            rows.append(
                (
                    label,
                    average(residuals(result, central), "{:.4f}".format),
                    accuracies(finals(result, "accuracy")),
                    human_bytes(mean(finals(result, "bytes_up"))),
                    human_bytes(mean(finals(result, "bytes_down"))),
                    f"{seconds_of(result):.1f}",
                    ", ".join(f"{key} {value}" for key, value in result["chosen"].items()),
                )
            )
        up.set(title=f"{constraint}: up", xlabel="bytes up", ylabel="residual")
        both.set(title="up and down", xlabel="bytes")
        rounds.set(title="by rounds", xlabel="round")
        up.legend(fontsize="x-small")
        header = ("algorithm", "residual", "accuracy %", "up", "down", "seconds", "chosen")
        page.table(header, rows)
        shown = {label: results[cell] for label, cell in found.items()}
        digits = f"{scale.some} digits of MNIST, 3 labels a client, {constraint}"
        caption = f"Residual against bytes, {digits}; dashed: sends more than atoms"
        optima = {label: results[Central.of(cell)] for label, cell in found.items()}
        data = curves_csv(shown, ("loss", "accuracy", "bytes_up", "bytes_down"), optima)
        page.plot(figure, caption, data, f"traffic-{constraint.partition(':')[0]}")


def claims(scale: Scale, results: Results) -> list[Claim]:
    figures, holds = [], []
    for constraint in SETS:
        found = cells(constraint, scale)
        if all_run([results[cell] for cell in found.values()]):
            far = {label: mean(residuals(results[c], results[Central.of(c)])) for label, c in found.items()}
            holds.append(far["fedfw+"] < far["fedfw"])
            figures.append(f"{constraint}: residual {far['fedfw+']:.4f} (FedFW+), {far['fedfw']:.4f} (FedFW)")
    verdict = all(holds) if holds else None
    return [Claim("FedFW+ is empirically faster than FedFW", verdict, "; ".join(figures), "Residual against bytes")]
