"""Table 2: a CNN on MNIST and a network with two hidden layers on synthetic data."""

from __future__ import annotations

from fedfw.experiments.lab import Results, Task
from fedfw.experiments.protocols import Scale, matched, ours, stated
from fedfw.experiments.published import TABLE_2
from fedfw.experiments.table1 import PAPER_ALGORITHMS, SMALL
from fedfw.experiments.tables import Line, Reasons, show_table, tasks_of, verdict
from fedfw.report.document import Document

COLUMNS = ("stated", "matched", "ours")
_MADE = "published: the best of 1,000 rounds of one epoch in batches of 64 each, a ball for each tensor"
_REASONS: Reasons = {(data, split, s): _MADE for data, split, _, _ in SMALL for s in ("l1", "l2")}


def lines(scale: Scale) -> list[Line]:
    """All rows."""
    found = []
    for data, split, dataset, partition in SMALL:
        model = "cnn" if data == "MNIST" else "mlp"
        for name in ("l2", "l1"):
            paper = {a: TABLE_2[name, "IID" if split == "IID" else "non-IID", data, a] for a in PAPER_ALGORITHMS}
            task = (dataset, partition, f"{name}:10")
            for algorithm in PAPER_ALGORITHMS:
                cells = {
                    "stated": stated(*task, algorithm, model, scale),
                    "matched": matched(*task, algorithm, model, scale),
                }
                found.append(Line(data, split, name, algorithm, paper[algorithm], cells))
            title = "ours: " + ("FedFW+ with momentum" if name == "l2" else "FedFW-anchored")
            own = {"ours": ours(*task, model, scale)}
            found.append(Line(data, split, name, title, max(paper.values()), own))
    return found


def tasks(scale: Scale) -> list[Task]:
    return tasks_of(lines(scale))


def summary(scale: Scale, results: Results) -> str:
    return verdict(lines(scale), results)


def show(scale: Scale, results: Results, page: Document) -> None:
    page.text(
        "Radius 10. Ours has one set for each parameter and steps that decay to zero; the stated protocol one joint "
        "set and the schedule of the theory. The grids are tried on a tenth of the data."
    )
    show_table(lines(scale), COLUMNS, results, page, _REASONS)
