"""FedLMO on convex problems: everybody, some clients a round, and control variates that are renewed
now and then.

Softmax regression, three labels a client, full gradients. Every row has the same six settings
(`LMO_SIX`), chosen by the loss on lent samples with seed 0, and F* is known to 1e-5. The lazy
variant sends nothing but atoms between two renewals. It stands beside anchored FedFW with as many
rounds between two anchors, each with the better of two schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import mean
from typing import Any

from fedfw.config import RunConfig
from fedfw.report import human_bytes
from fedfw_reproduction.cells import Cell, Central
from fedfw_reproduction.document import Cell as TableCell
from fedfw_reproduction.document import Document, csv_text
from fedfw_reproduction.figures import RESIDUAL, Done, Judged, accuracies, all_run, average, panels
from fedfw_reproduction.lab import was_run
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
"""Everybody of 10 clients: by set and local steps, the residual that is asked for; None where there
is none.
"""
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


def judged(cell: Cell) -> Judged:
    """A cell beside its optimum to 1e-5; a run that was cut short needs less."""
    optimum = Central.of(cell)
    short = cell.config.rounds < 50
    return Judged(cell, optimum if short else replace(optimum, tol=1e-5, max_steps=10_000))


def tuned(
    bars: Mapping[tuple[str, int], float | None], scale: Scale, **setting: Any
) -> dict[tuple[str, int], Judged]:
    """By set and local steps."""
    samples = setting.pop("samples")
    base = RunConfig.of(
        dataset="mnist", model="mclr", partition="labels:3", rounds=scale.rounds, **setting
    )
    grid = scale.thinned(LMO_SIX)
    return {
        (constraint, K): judged(
            Cell(
                base.having(algorithm="fedlmo", constraint=constraint, local_steps=K),
                grid=grid,
                seeds=scale.seeds,
                samples=samples,
            )
        )
        for constraint, K in bars
    }


def cells(scale: Scale) -> dict[str, Any]:
    """Ten clients, all present; thirty clients, nine of them a round; and control variates that are
    renewed.
    """
    return {
        "everybody": tuned(BARS, scale, clients=10, participation=1.0, samples=scale.samples),
        "some": tuned(PARTIAL_BARS, scale, clients=30, participation=9, samples=scale.some),
        "lazy": {setting: renewed(setting, scale) for setting in LAZY},
    }


def renewed(setting: str, scale: Scale) -> dict[tuple[str, int, int], list[Judged]]:
    """Lazy FedLMO and anchored FedFW, by name, rounds between two sums, and local steps: a row for
    each schedule.
    """
    dataset, partition, constraint = LAZY[setting]
    base = RunConfig.of(
        dataset=dataset,
        model="mclr",
        clients=10,
        partition=partition,
        constraint=constraint,
        momentum=0.0,
        rounds=scale.rounds,
    )
    anchored = base.having(
        algorithm="fedfw-anchored", gradient_at="own", penalty=0.0
    )  # its first form
    found = {}
    for m in RENEWALS:
        for K in LOCAL_STEPS:
            found[LAZY_NAME, m, K] = base.having(algorithm="fedlmo", renew_every=m, local_steps=K)
            found[ANCHORED, m, K] = anchored.having(anchor_every=m, local_steps=K)
        found[WITH_MOMENTUM, m, 1] = found[ANCHORED, m, 1].having(momentum=0.9)

    return {
        key: [
            judged(Cell(config.having(schedule=schedule), seeds=scale.seeds, samples=scale.some))
            for schedule in SCHEDULES
        ]
        for key, config in found.items()
    }


def show(scale: Scale, found: dict[str, Any], page: Document) -> None:
    page.text(
        "Softmax regression, three labels a client, full gradients, control variates. Every row has the same six "
        "settings, chosen by the loss on a fifth of the training data, which the clients lend, with seed 0. The "
        "residual is (F - F*)/(F(x^1) - F*). Beside each atom the change of the control variate goes up, which is "
        "dense, and so does the momentum where there is one."
    )
    parts = {
        "everybody": f"Everybody of 10 clients, {scale.samples or 'all'} digits of MNIST, {scale.rounds} rounds",
        "some": f"9 of 30 clients a round, {scale.some} digits of MNIST, {scale.rounds} rounds",
    }
    for part, title in parts.items():
        page.heading(title, 3)
        bars = BARS if part == "everybody" else PARTIAL_BARS
        run = {
            key: done
            for key, done in found[part].items()
            if was_run(done.result) and done.has_optimum
        }
        if run:
            header = (
                "set",
                "local steps",
                "residual",
                "asked for",
                "F* known to",
                "accuracy %",
                "up",
                "chosen",
            )
            page.table(header, [_row(key, done, bars[key], scale) for key, done in run.items()])
        if left := [
            f"{constraint} with {K} local steps"
            for constraint, K in found[part]
            if (constraint, K) not in run
        ]:
            page.text(f"Not run: {', '.join(left)}.")
    _show_lazy(scale, found["lazy"], page)


def _row(setting: tuple[str, int], done: Done, bar: float | None, scale: Scale) -> list[TableCell]:
    far = done.ends(RESIDUAL)
    constraint, K = setting
    return [
        constraint,
        str(K),
        (average(far, "{:.2g}".format), scale.kind(None if bar is None else mean(far) <= bar)),
        "-" if bar is None else f"<= {bar:g}",
        f"{max(done.of_optimum('uncertainty')):.1g}",
        accuracies(done.ends("accuracy")),
        human_bytes(done.end("bytes_up")),
        done.chosen,
    ]


def _show_lazy(
    scale: Scale, lazy: Mapping[str, Mapping[tuple[str, int, int], list[Done]]], page: Document
) -> None:
    page.heading(
        "Control variates that are renewed every m rounds, beside anchors every m rounds", 3
    )
    shown = {setting: rows for setting, rows in lazy.items() if all_run(rows)}
    if not shown:
        page.text("Not run.")
        return
    figure, axes = panels(len(shown), 4.2)
    table, data = [], list[tuple[object, ...]]()
    found: dict[str, Points] = {}
    for axis, (setting, rows) in zip(axes, shown.items(), strict=True):
        found[setting] = points = {key: _point(done) for key, done in rows.items()}
        for name, K in dict.fromkeys((name, K) for name, _, K in points):
            line = [points[name, m, K] for m in RENEWALS]
            axis.loglog(
                *zip(*line, strict=True),
                "o-" if name == LAZY_NAME else "s--",
                label=f"{name}, K = {K}",
            )
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
    page.plot(
        figure,
        caption,
        csv_text(("problem", "method", "m", "K", "bytes_up", "residual"), data),
        "lazy",
    )


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
                min(
                    far
                    for (name, at, _), (_, far) in points.items()
                    if at == m and (name == LAZY_NAME) is lazy
                )
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


def _point(rows: list[Done]) -> tuple[float, float]:
    """Bytes up and residual of the better row, means over the seeds."""
    far, up = min((done.end(RESIDUAL), done.end("bytes_up")) for done in rows)
    return up, max(far, 1e-6)


def _except(cases: list[str]) -> str:
    return f" (not: {'; '.join(cases)})" if cases else ""
