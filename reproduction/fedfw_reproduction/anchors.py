"""Clients that differ, on the l1 ball: what an anchor now and then is worth, in residual against bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from fedfw.config import RunConfig
from fedfw.report.document import Document, csv_text
from fedfw.report.tables import human_bytes
from fedfw_reproduction.cells import Cell, Central, accuracies, average, finals, residuals
from fedfw_reproduction.figures import Claim, all_run, panels
from fedfw_reproduction.lab import Results, Task
from fedfw_reproduction.protocols import Scale

SETTINGS = {
    "MNIST, 3 labels": ("mnist", "mclr", "labels:3"),
    "a9a, Dirichlet(0.3)": ("a9a", "logistic", "dirichlet:0.3"),
    "synthetic, 3 labels": ("synthetic:published-10", "mclr", "labels:3"),
    "synthetic(1,1)": ("synthetic:1,1", "mclr", "client"),
}
_PENALTIES = tuple(f"theory:{multiple}" for multiple in (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1))


@dataclass(frozen=True)
class Entry:
    """One point of the plot: a name, the family whose points are joined, and its cell."""

    label: str
    family: str
    cell: Cell


def entries(setting: str, scale: Scale) -> list[Entry]:
    """Plain and gradient-sharing algorithms, and anchors every m rounds, with and without momentum."""
    dataset, model, partition = SETTINGS[setting]
    base = RunConfig.of(
        dataset=dataset,
        model=model,
        partition=partition,
        constraint="l1:10",
        rounds=scale.rounds,
        momentum=0.0,
    )
    grid = scale.thinned((("penalty", _PENALTIES),))

    def cell(**changes: Any) -> Cell:
        return Cell(base.having(**changes), seeds=scale.seeds, samples=scale.samples)

    found = [
        Entry("FedFW", "FedFW", replace(cell(algorithm="fedfw"), grid=grid)),
        Entry("FedFW+", "FedFW+", replace(cell(algorithm="fedfw+"), grid=grid)),
    ]
    for momentum in (0.0, 0.9):
        also = ", momentum" if momentum else ""
        central = cell(algorithm="frank-wolfe", momentum=momentum)
        found.append(Entry(f"gradient-sharing FW{also}", f"gradient-sharing FW{also}", central))
        for m in sorted({1, 5, 10, 20, 50, scale.rounds} - set(range(scale.rounds + 1, 51))):
            label = "once" if m == scale.rounds else f"m = {m}"
            anchored = cell(algorithm="fedfw-anchored", momentum=momentum, anchor_every=m)
            found.append(Entry(f"anchors{also}, {label}", f"anchors{also}", anchored))
    return found


def tasks(scale: Scale) -> list[Task]:
    cells = [entry.cell for setting in SETTINGS for entry in entries(setting, scale)]
    return [*cells, *map(Central.of, cells)]


def show(scale: Scale, results: Results, page: Document) -> None:
    runnable = [name for name in SETTINGS if all_run([results[e.cell] for e in entries(name, scale)])]
    if not runnable:
        page.text("not run: no data")
        return
    figure, axes = panels(len(runnable), 4.2)
    data: list[tuple[object, ...]] = []
    for axis, setting in zip(axes, runnable, strict=True):
        found = entries(setting, scale)
        points = {entry.label: _point(entry, results) for entry in found}
        for family in dict.fromkeys(entry.family for entry in found):
            group = [points[entry.label] for entry in found if entry.family == family]
            axis.loglog(*zip(*group, strict=True), "o-" if len(group) > 1 else "s", label=family)
        axis.set(title=setting, xlabel="bytes up, all clients and rounds", ylabel="residual")
        dense = points["gradient-sharing FW"][0]
        data += [(setting, label, *point) for label, point in points.items()]
        page.heading(f"{setting}, l1 ball of radius 10", 3)
        header = ("algorithm", "residual", "accuracy %", "up", "of gradient sharing", "down")
        rows = []
        for entry in found:
            result = results[entry.cell]
            up, down = (mean(finals(result, way)) for way in ("bytes_up", "bytes_down"))
            far = residuals(result, results[Central.of(entry.cell)])
            accuracy = accuracies(finals(result, "accuracy"))
            share = f"{up / dense:.2%}"
            rows.append(
                (entry.label, average(far, "{:.4f}".format), accuracy, human_bytes(up), share, human_bytes(down))
            )
        page.table(header, rows)
    axes[0].legend(fontsize="x-small")
    caption = (
        f"Residual after {scale.rounds} rounds against bytes; anchors from every round (right) to once (left). "
        "At equal rounds: an anchor costs a client one more gradient."
    )
    page.plot(figure, caption, csv_text(("setting", "algorithm", "bytes_up", "residual"), data), "anchors")


def claims(scale: Scale, results: Results) -> list[Claim]:
    traffic, holds = [], []
    for setting in SETTINGS:
        found = {entry.label: entry for entry in entries(setting, scale)}
        if not all_run([results[entry.cell] for entry in found.values()]):
            continue
        dense, plain = (_point(found[label], results) for label in ("gradient-sharing FW", "FedFW"))
        holds.append(plain[0] < dense[0])
        traffic.append(
            f"{setting}: {human_bytes(plain[0])} up against {human_bytes(dense[0])}, "
            f"residual {plain[1]:.3f} against {dense[1]:.3f}"
        )
    verdict = all(holds) if holds else None
    return [
        Claim(
            "Sharing atoms costs fewer bytes than sharing gradients (l1 ball, up, equal rounds; on l2 atoms are dense)",
            verdict,
            "; ".join(traffic),
            "Anchors",
        )
    ]


def _point(entry: Entry, results: Results) -> tuple[float, float]:
    """Bytes up and residual, means over the seeds."""
    result = results[entry.cell]
    far = mean(residuals(result, results[Central.of(entry.cell)]))
    return mean(finals(result, "bytes_up")), max(far, 1e-6)
