"""Convergence with the certificate's band: what is proven about the optimum while FedFW trains."""

from __future__ import annotations

from fedfw.config import RunConfig
from fedfw.report.document import Document
from fedfw_reproduction.cells import Cell, Central
from fedfw_reproduction.figures import curves_csv, panels
from fedfw_reproduction.lab import Results, Task, was_run
from fedfw_reproduction.protocols import Scale

SETTINGS = {
    "a9a, l1:2, IID": ("a9a", "logistic", "iid", "l1:2", "theory:0.001"),
    "MNIST, l2:10, IID": ("mnist", "mclr", "iid", "l2:10", "theory"),
    "MNIST, l2:10, 3 labels": ("mnist", "mclr", "labels:3", "l2:10", "theory:3"),
}


def cell(setting: str, scale: Scale) -> Cell:
    """FedFW without momentum: its certificate comes with every round."""
    dataset, model, partition, constraint, penalty = SETTINGS[setting]
    config = RunConfig.of(
        dataset=dataset,
        model=model,
        partition=partition,
        constraint=constraint,
        algorithm="fedfw",
        penalty=penalty,
        momentum=0.0,
        rounds=scale.long_rounds,
    )
    return Cell(config, seeds=1, samples=scale.samples, every=1)


def tasks(scale: Scale) -> list[Task]:
    cells = [cell(setting, scale) for setting in SETTINGS]
    return [*cells, *map(Central.of, cells)]


def show(scale: Scale, results: Results, page: Document) -> None:
    run = {setting: c for setting in SETTINGS if was_run(results[c := cell(setting, scale)])}
    if not run:
        page.text("not run: no data")
        return
    figure, axes = panels(len(run))
    for axis, (setting, c) in zip(axes, run.items(), strict=True):
        curve, optimum = results[c]["runs"][0]["curve"], results[Central.of(c)]["seeds"][0]["value"]
        above = [max(loss - optimum, 1e-12) for loss in curve["loss"]]
        proven = [loss - bound for loss, bound in zip(curve["loss"], curve["lower_bound"], strict=True)]
        axis.semilogy(curve["round"], above, label="F - F*")
        axis.semilogy(curve["round"], proven, label="F - proven lower bound")
        axis.fill_between(curve["round"], above, proven, alpha=0.15, lw=0)
        axis.set(title=setting, xlabel="round")
    axes[0].legend()
    shown = {setting: results[c] for setting, c in run.items()}
    optima = {setting: results[Central.of(c)] for setting, c in run.items()}
    data = curves_csv(shown, ("loss", "lower_bound", "gap"), optima)
    page.plot(figure, "The certificate: distance from the optimum, and what is proven of it", data, "certificate")
