"""Local steps: from one to fifty a round, at equal rounds and at equal gradients."""

from __future__ import annotations

from fedfw.config import RunConfig
from fedfw.report.document import Document
from fedfw_reproduction.cells import Cell, Central
from fedfw_reproduction.figures import all_run, curves_csv, mean_curve, panels, residual_curve
from fedfw_reproduction.lab import Results, Task
from fedfw_reproduction.protocols import Scale

STEPS = (1, 2, 5, 10, 20, 50)
SETTINGS = {
    "l2:10, IID": ("l2:10", "iid", "theory:3"),
    "l2:10, 3 labels": ("l2:10", "labels:3", "theory:3"),
    "l1:10, 3 labels": ("l1:10", "labels:3", "theory:0.001"),
}


def cell(setting: str, steps: int, scale: Scale) -> Cell:
    """FedFW on some of MNIST."""
    constraint, partition, penalty = SETTINGS[setting]
    config = RunConfig.of(
        dataset="mnist",
        model="mclr",
        partition=partition,
        constraint=constraint,
        algorithm="fedfw",
        penalty=penalty,
        momentum=0.0,
        local_steps=steps,
        rounds=scale.rounds,
    )
    return Cell(config, seeds=scale.seeds, samples=scale.some, every=1)


def tasks(scale: Scale) -> list[Task]:
    cells = [cell(setting, steps, scale) for setting in SETTINGS for steps in STEPS]
    return [*cells, *map(Central.of, cells)]


def show(scale: Scale, results: Results, page: Document) -> None:
    if not all_run([results[task] for task in tasks(scale) if isinstance(task, Cell)]):
        page.text("not run: no data")
        return
    shown, optima = {}, {}
    for what in ("rounds", "gradients"):
        figure, axes = panels(len(SETTINGS))
        for axis, setting in zip(axes, SETTINGS, strict=True):
            for steps in STEPS:
                c = cell(setting, steps, scale)
                result = results[c]
                shown[f"{setting}, {steps} steps"] = result
                far = residual_curve(result, results[Central.of(c)])
                optima[f"{setting}, {steps} steps"] = results[Central.of(c)]
                times = 1 if what == "rounds" else steps
                axis.loglog([times * t for t in mean_curve(result, "round")], far, label=f"{steps} steps")
            axis.set(title=setting, xlabel="round" if times == 1 else "full gradients of a client", ylabel="residual")
        axes[0].legend(fontsize="x-small")
        caption = f"Local steps of FedFW, {scale.some} digits of MNIST: residual by {what}s".replace(
            "gradientss", "gradients"
        )
        page.plot(figure, caption, curves_csv(shown, ("loss", "accuracy", "bytes_up"), optima), f"local-steps-{what}")
