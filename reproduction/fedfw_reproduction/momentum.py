"""Momentum and step schedules: what each is worth on a smooth set and on a polytope."""

from __future__ import annotations

from statistics import mean

from fedfw.config import RunConfig
from fedfw.report.document import Document
from fedfw_reproduction.cells import Cell, Central, accuracies, average, finals, residuals
from fedfw_reproduction.figures import all_run, curves_csv, mean_curve, panels, residual_curve
from fedfw_reproduction.lab import Results, Task
from fedfw_reproduction.protocols import Scale

BETAS = (0.0, 0.5, 0.8, 0.9, 0.95)
SCHEDULES = ("convex", "nonconvex", "constant:0.02", "linear-decay:0.1")
SETS = {
    "l2:10": ("theory:0.03", "theory:0.1", "theory:0.3", "theory:1", "theory:3"),
    "l1:10": ("theory:0.0001", "theory:0.001", "theory:0.01", "theory:0.1"),
}


def cells(constraint: str, scale: Scale) -> dict[str, Cell]:
    """FedFW+ on MNIST, three labels a client; the penalty is chosen anew for each."""
    grid = scale.thinned((("penalty", SETS[constraint]),))
    pairs = [(beta, "convex") for beta in BETAS] + [(beta, s) for s in SCHEDULES[1:] for beta in (0.0, 0.9)]
    found = {}
    for beta, schedule in pairs:
        config = RunConfig.of(
            dataset="mnist",
            model="mclr",
            partition="labels:3",
            constraint=constraint,
            algorithm="fedfw+",
            momentum=beta,
            schedule=schedule,
            rounds=scale.rounds,
        )
        found[f"{schedule}, momentum {beta:g}"] = Cell(
            config, grid=grid, seeds=scale.seeds, samples=scale.some, every=2
        )
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
        figure, (betas, schedules) = panels(2, 4.2)
        rows = []
        for label, cell in found.items():
            result, central = results[cell], results[Central.of(cell)]
            far = residual_curve(result, central)
            schedule, beta = cell.config.get("schedule"), cell.config.get("momentum")
            if schedule == "convex":
                betas.semilogy(mean_curve(result, "round"), far, label=label)
            if beta in (0.0, 0.9):
                style, color = "-" if beta else "--", f"C{SCHEDULES.index(schedule)}"
                schedules.semilogy(mean_curve(result, "round"), far, style, color=color, label=label)
            rows.append(
                (
                    label,
                    average(residuals(result, central), "{:.4f}".format),
                    accuracies(finals(result, "accuracy")),
                    f"{mean(finals(result, 'gap')):.3g}",
                    str(result["chosen"].get("penalty", "-")),
                )
            )
        for axis in (betas, schedules):
            axis.set(xlabel="round", ylabel="residual")
            axis.legend(fontsize="x-small")
        page.table((f"FedFW+, {constraint}", "residual", "accuracy %", "gap", "penalty"), rows)
        shown = {label: results[cell] for label, cell in found.items()}
        optima = {label: results[Central.of(cell)] for label, cell in found.items()}
        caption = f"Momentum and schedules: {scale.some} digits of MNIST, 3 labels a client, {constraint}"
        page.plot(figure, caption, curves_csv(shown, ("loss", "accuracy", "gap"), optima), f"momentum-{constraint[:2]}")
