"""Table 1: softmax regression on MNIST, synthetic data and CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence

from fedfw.experiments.lab import Results, Task
from fedfw.experiments.protocols import Scale, matched, ours, stated
from fedfw.experiments.published import TABLE_1
from fedfw.experiments.tables import Line, Reasons, show_table, tasks_of, verdict
from fedfw.report.document import Document

PAPER_ALGORITHMS = ("feddr", "fedfw", "fedfw+")
BASELINES = ("fedda", "fedadmm", "fedavg")
COLUMNS = ("stated", "matched", "ours", "stated, radius 100", "matched, radius 100")
SMALL = (
    ("MNIST", "IID", "mnist", "iid"),
    ("MNIST", "3 labels", "mnist", "labels:3"),
    ("Synthetic", "IID", "synthetic:published-10", "iid"),
    ("Synthetic", "3 labels", "synthetic:published-10", "labels:3"),
    ("Synthetic", "3 classes", "synthetic:published-3", "iid"),
)
CIFAR = (("CIFAR-10", "IID", "cifar10", "iid"), ("CIFAR-10", "3 labels", "cifar10", "labels:3"))

_MADE = "published: the best of 1,000 rounds of one epoch in batches of 64 each"
_MADE_WIDE = "published: radius 100 and the best of 1,000 rounds of one epoch each"
_REASONS: Reasons = {
    **{(data, split, s): _MADE for data, split, _, _ in (*SMALL, *CIFAR) for s in ("l1", "l2")},
    ("MNIST", "IID", "l1"): _MADE_WIDE,
    ("MNIST", "3 labels", "l1"): _MADE_WIDE,
    ("Synthetic", "IID", "l1"): f"{_MADE}, 50 clients",
    ("Synthetic", "3 labels", "l1"): "published: a problem of three classes, the row below",
    ("Synthetic", "3 labels", "l2"): "published: a problem of three classes, the row below",
}


def lines(entries: Sequence[tuple[str, str, str, str]], scale: Scale, baselines: bool) -> list[Line]:
    """All rows; the baselines that the paper lacks only where asked for."""
    found = []
    for data, split, dataset, partition in entries:
        for name in ("l2", "l1"):
            paper = {a: TABLE_1[name, "IID" if split == "IID" else "non-IID", data, a] for a in PAPER_ALGORITHMS}
            for algorithm in (*PAPER_ALGORITHMS, *(BASELINES if baselines else ())):
                cells = {}
                for radius, suffix in ((10, ""), (100, ", radius 100")):
                    if radius == 100 and name == "l2":
                        continue
                    for title, protocol in (("stated", stated), ("matched", matched)):
                        cell = protocol(dataset, partition, f"{name}:{radius}", algorithm, "mclr", scale)
                        cells[title + suffix] = cell
                found.append(Line(data, split, name, algorithm, paper.get(algorithm), cells))
            own = {"ours": ours(dataset, partition, f"{name}:10", "mclr", scale)}
            title = "ours: " + ("FedFW+ with momentum" if name == "l2" else "FedFW-anchored")
            found.append(Line(data, split, name, title, max(paper.values()), own))
    return found


def tasks(entries: Sequence[tuple[str, str, str, str]], scale: Scale, baselines: bool) -> list[Task]:
    return tasks_of(lines(entries, scale, baselines))


def summary(entries: Sequence[tuple[str, str, str, str]], scale: Scale, baselines: bool, results: Results) -> str:
    return verdict(lines(entries, scale, baselines), results)


def show(
    entries: Sequence[tuple[str, str, str, str]], scale: Scale, baselines: bool, results: Results, page: Document
) -> None:
    page.text(
        "Radius 10 unless the column says otherwise. The paper's non-IID synthetic data were a problem of three "
        "classes shared by all clients: the rows “3 labels” follow the text, the rows “3 classes” the numbers."
    )
    show_table(lines(entries, scale, baselines), COLUMNS, results, page, _REASONS)
