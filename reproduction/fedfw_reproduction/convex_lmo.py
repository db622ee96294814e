"""FedLMO on convex problems: everybody, some clients a round, and control variates that are renewed now and then.

Softmax regression, three labels a client, full gradients. Every row has the same six settings (`LMO_SIX`), chosen by
the loss on lent samples with seed 0, and F* is known to 1e-5. The lazy variant sends nothing but atoms between two
renewals. It stands beside anchored FedFW with as many rounds between two anchors, each with the better of two
schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from fedfw.config import RunConfig
from fedfw.report import document
from fedfw.report.document import Document, csv_text
from fedfw.report.tables import human_bytes
from fedfw_reproduction.cells import Cell, Central, accuracies, average, finals, residuals
from fedfw_reproduction.figures import all_run, panels
from fedfw_reproduction.lab import Results, Task, was_run
from fedfw_reproduction.protocols import LMO_SIX, Scale

BARS: dict[tuple[str, int], float | None] = {
    ("l1:10", 3): 2e-4,
    ("l1:10", 10): 2e-4,
    ("l1:100", 3): 0.012,
    ("l1:100", 10): None,
    ("l2:10", 3): 0.003,
    ("l2:10", 10): None,
    ("nuclear:10", 3): None,
}
"""Everybody of 10 clients: by set and local steps, the residual that is asked for; None where there is none."""
PARTIAL_BARS: dict[tuple[str, int], float | None] = {("l1:10", 3): 5e-4, ("l2:10", 3): 0.002}
"""9 of 30 clients a round."""
LAZY = {
    "MNIST, l1:10": ("mnist", "labels:3", "l1:10"),
    "MNIST, l1:100": ("mnist", "labels:3", "l1:100"),
    "MNIST, l2:10": ("mnist", "labels:3", "l2:10"),
    "synthetic(1,1), l1:10": ("synthetic:1,1", "client", "l1:10"),
}
RENEWALS = (2, 5, 20)
LOCAL_STEPS = (1, 3, 10)
SCHEDULES = ("convex", "linear-decay:0.2")
LAZY_NAME, ANCHORED, WITH_MOMENTUM = "lazy FedLMO", "anchored FedFW", "anchored FedFW, momentum 0.9"


Points = Mapping[tuple[str, int, int], tuple[float, float]]
"""Bytes up and residual, by method, rounds between two sums and local steps."""


@dataclass(frozen=True)
class Row:
    """A cell, what it is called, and the residual that it is to reach, if any."""

    label: str
    constraint: str
    cell: Cell
    bar: float | None = None

    @property
    def central(self) -> Central:
        """Its optimum to 1e-5; a run that was cut short needs less."""
        found = Central.of(self.cell)
        return found if self.cell.config.rounds < 50 else replace(found, tol=1e-5, max_steps=10_000)


def everybody(scale: Scale) -> list[Row]:
    """Ten clients, all present."""
    return [_tuned(constraint, K, bar, 10, scale.samples, scale) for (constraint, K), bar in BARS.items()]


def some_a_round(scale: Scale) -> list[Row]:
    """Thirty clients, nine of them a round."""
    return [_tuned(constraint, K, bar, 30, scale.some, scale) for (constraint, K), bar in PARTIAL_BARS.items()]


def _tuned(constraint: str, K: int, bar: float | None, clients: int, samples: int | None, scale: Scale) -> Row:
    config = RunConfig.of(
        dataset="mnist",
        model="mclr",
        partition="labels:3",
        clients=clients,
        participation=1.0 if clients == 10 else 9,
        constraint=constraint,
        algorithm="fedlmo",
        local_steps=K,
        rounds=scale.rounds,
    )
    cell = Cell(config, grid=scale.thinned(LMO_SIX), seeds=scale.seeds, samples=samples)
    return Row(str(K), constraint, cell, bar)


def renewed(setting: str, scale: Scale) -> dict[tuple[str, int, int], list[Row]]:
    """Lazy FedLMO and anchored FedFW, by name, rounds between two sums, and local steps: a row for each schedule."""
    dataset, partition, constraint = LAZY[setting]
    base = RunConfig.of(
        dataset=dataset,
        model="mclr",
        partition=partition,
        constraint=constraint,
        momentum=0.0,
        rounds=scale.rounds,
    )
    anchored = base.having(algorithm="fedfw-anchored", gradient_at="own", penalty=0.0)  # its first form
    found = {}
    for m in RENEWALS:
        for K in LOCAL_STEPS:
            found[LAZY_NAME, m, K] = base.having(algorithm="fedlmo", renew_every=m, local_steps=K)
            found[ANCHORED, m, K] = anchored.having(anchor_every=m, local_steps=K)
        found[WITH_MOMENTUM, m, 1] = found[ANCHORED, m, 1].having(momentum=0.9)

    def row(config: RunConfig, schedule: str) -> Row:
        cell = Cell(config.having(schedule=schedule), seeds=scale.seeds, samples=scale.some)
        return Row(schedule, constraint, cell)

    return {key: [row(config, schedule) for schedule in SCHEDULES] for key, config in found.items()}


def tasks(scale: Scale) -> list[Task]:
    lazy = [row for setting in LAZY for rows in renewed(setting, scale).values() for row in rows]
    rows = [*everybody(scale), *some_a_round(scale), *lazy]
    return [*(row.cell for row in rows), *(row.central for row in rows)]


def show(scale: Scale, results: Results, page: Document) -> None:
    page.text(
        "Softmax regression, three labels a client, full gradients, control variates. Every row has the same six "
        "settings, chosen by the loss on a fifth of the training data, which the clients lend, with seed 0. The "
        "residual is (F - F*)/(F(x^1) - F*). Beside each atom the change of the control variate goes up, which is "
        "dense, and so does the momentum where there is one."
    )
    parts = (
        (f"Everybody of 10 clients, {scale.samples or 'all'} digits of MNIST, {scale.rounds} rounds", everybody(scale)),
        (f"9 of 30 clients a round, {scale.some} digits of MNIST, {scale.rounds} rounds", some_a_round(scale)),
    )
    for title, rows in parts:
        page.heading(title, 3)
        run = [row for row in rows if was_run(results[row.cell]) and was_run(results[row.central])]
        if run:
            header = ("set", "local steps", "residual", "asked for", "F* known to", "accuracy %", "up", "chosen")
            page.table(header, [_cells(row, scale, results) for row in run])
        if left := [f"{row.constraint} with {row.label} local steps" for row in rows if row not in run]:
            page.text(f"Not run: {', '.join(left)}.")
    _show_lazy(scale, results, page)


def _cells(row: Row, scale: Scale, results: Results) -> list[document.Cell]:
    result, central = results[row.cell], results[row.central]
    far = residuals(result, central)
    kind = scale.kind(None if row.bar is None else mean(far) <= row.bar)
    return [
        row.constraint,
        row.label,
        (average(far, "{:.2g}".format), kind),
        "-" if row.bar is None else f"<= {row.bar:g}",
        f"{max(seed['uncertainty'] for seed in central['seeds']):.1g}",
        accuracies(finals(result, "accuracy")),
        human_bytes(mean(finals(result, "bytes_up"))),
        ", ".join(f"{key} {value}" for key, value in result["chosen"].items()),
    ]


def _show_lazy(scale: Scale, results: Results, page: Document) -> None:
    page.heading("Control variates that are renewed every m rounds, beside anchors every m rounds", 3)
    rows_of = {setting: renewed(setting, scale) for setting in LAZY}
    shown = [
        setting
        for setting, rows in rows_of.items()
        if all_run([results[row.cell] for pair in rows.values() for row in pair])
    ]
    if not shown:
        page.text("Not run.")
        return
    figure, axes = panels(len(shown), 4.2)
    table, data = [], list[tuple[object, ...]]()
    found: dict[str, Points] = {}
    for axis, setting in zip(axes, shown, strict=True):
        found[setting] = points = {key: _point(rows, results) for key, rows in rows_of[setting].items()}
        for name, K in dict.fromkeys((name, K) for name, _, K in points):
            line = [points[name, m, K] for m in RENEWALS]
            axis.loglog(*zip(*line, strict=True), "o-" if name == LAZY_NAME else "s--", label=f"{name}, K = {K}")
        axis.set(title=setting, xlabel="bytes up, all clients and rounds", ylabel="residual")
        for (name, m, K), (up, far) in points.items():
            table.append((setting, name, str(m), str(K), human_bytes(up), f"{far:.2g}"))
            data.append((setting, name, m, K, up, far))
    axes[0].legend(fontsize="x-small")
    page.text(compared(found))
    page.table(("problem", "method", "m", "local steps", "up", "residual"), table)
    page.text(
        f"{scale.some} digits of MNIST, or synthetic data; 10 clients, {scale.rounds} rounds, no momentum unless it is "
        f"named, and of the schedules {' and '.join(SCHEDULES)} the better one. An anchor costs a client one more "
        "gradient."
    )
    caption = f"Residual after {scale.rounds} rounds against bytes; sums every 2 (right), 5 and 20 (left) rounds"
    page.plot(figure, caption, csv_text(("problem", "method", "m", "K", "bytes_up", "residual"), data), "lazy")


def compared(found: Mapping[str, Points]) -> str:
    """Whether lazy FedLMO is better than anchored FedFW everywhere, in words."""
    pairs, behind, best, beaten = 0, [], 0, []
    for setting, points in found.items():
        for m in RENEWALS:
            for K in LOCAL_STEPS:
                pairs += 1
                if points[LAZY_NAME, m, K][1] > points[ANCHORED, m, K][1]:
                    behind.append(f"{setting}, m = {m}, K = {K}")
            own, others = (
                min(far for (name, at, _), (_, far) in points.items() if at == m and (name == LAZY_NAME) is lazy)
                for lazy in (True, False)
            )
            best += 1
            if own > others:
                beaten.append(f"{setting}, m = {m}")
    return (
        f"With as many rounds, local steps and rounds between two sums, {LAZY_NAME} has the smaller residual in "
        f"{pairs - len(behind)} of {pairs} pairs{_except(behind)}. With its best number of local steps it beats the "
        f"best anchored FedFW, momentum included, in {best - len(beaten)} of {best} cases{_except(beaten)}. It is "
        f"{'not ' if behind or beaten else ''}better everywhere."
    )


def _point(rows: Sequence[Row], results: Results) -> tuple[float, float]:
    """Bytes up and residual of the better row, means over the seeds."""
    far, up = min(
        (mean(residuals(results[row.cell], results[row.central])), mean(finals(results[row.cell], "bytes_up")))
        for row in rows
    )
    return up, max(far, 1e-6)


def _except(cases: list[str]) -> str:
    return f" (not: {'; '.join(cases)})" if cases else ""
