"""The paper's figure 4: the initial penalty lam_0, in its four settings."""

from __future__ import annotations

from itertools import pairwise

from fedfw.config import RunConfig
from fedfw.report.document import Document
from fedfw_reproduction.cells import Cell
from fedfw_reproduction.figures import Claim, all_run, curves_csv, draw, mean_curve, panels
from fedfw_reproduction.lab import Results, Task
from fedfw_reproduction.protocols import Scale

PENALTIES: tuple[float | str, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
SETTINGS = {
    "mnist-l1": ("mnist", "mclr", "l1:10", 0.5),
    "mnist-l2": ("mnist", "mclr", "l2:10", 0.5),
    "network-l1": ("synthetic:published-10", "mlp", "l1:10", 1.0),
    "network-l2": ("synthetic:published-10", "mlp", "l2:10", 1.0),
}


def cell(setting: str, penalty: float | str, scale: Scale) -> Cell:
    """FedFW with one lam_0; "theory" minimises the convex bound with H taken at the start."""
    dataset, model, constraint, p = SETTINGS[setting]
    config = RunConfig.of(
        dataset=dataset,
        model=model,
        partition="labels:3",
        constraint=constraint,
        algorithm="fedfw",
        penalty=penalty,
        momentum=0.0,
        schedule="convex" if model == "mclr" else "nonconvex",
        participation=p,
        rounds=scale.rounds,
    )
    return Cell(
        config,
        seeds=scale.seeds,
        samples=scale.some if dataset == "mnist" else scale.samples,
        every=1 if scale.quick else 2,
    )


def tasks(scale: Scale) -> list[Task]:
    return [cell(setting, lam, scale) for setting in SETTINGS for lam in (*PENALTIES, "theory")]


def show(scale: Scale, results: Results, page: Document) -> None:
    for setting, (dataset, model, constraint, p) in SETTINGS.items():
        cells = {f"lam_0 = {lam:g}": cell(setting, lam, scale) for lam in PENALTIES if isinstance(lam, float)}
        best = results[cell(setting, "theory", scale)]
        if not all_run([best, *(results[c] for c in cells.values())]):
            page.text(f"{dataset}, {model}, {constraint}: not run: no data")
            continue
        lam = best["runs"][0]["lam_0"]
        mark = "minimises the bound" if model == "mclr" else "by the convex formula"
        shown = {label: results[c] for label, c in cells.items()} | {f"{lam:.2g}, {mark}": best}
        figure, (loss, gap, accuracy, last) = panels(4)
        for label, result in shown.items():
            style = {"color": "black", "ls": "--"} if result is best else {}
            for axis, column in ((loss, "loss"), (gap, "gap"), (accuracy, "accuracy")):
                draw(axis, result, column, label, **style)
        numbers = [float(v) for v in PENALTIES]
        ends = [mean_curve(results[c], "loss")[-1] for c in cells.values()]
        last.semilogx(numbers, ends, "o-")
        last.axvline(lam, color="black", ls="--", label=mark)
        loss.set(title="loss", xlabel="round")
        gap.set(title="Frank-Wolfe gap", xlabel="round", yscale="log")
        accuracy.set(title="test accuracy", xlabel="round")
        last.set(title="last loss", xlabel="lam_0")
        loss.legend(fontsize="small")
        last.legend(fontsize="small")
        some = f" ({scale.some} digits)" if dataset == "mnist" else ""
        caption = f"lam_0: {model} on {dataset}{some}, 3 labels a client, {constraint}, p = {p:g}"
        page.plot(figure, caption, curves_csv(shown, ("loss", "gap", "accuracy")), f"penalty-{setting}")


def claims(scale: Scale, results: Results) -> list[Claim]:
    early_gaps, holds = [], []
    for setting in SETTINGS:
        cells = [cell(setting, lam, scale) for lam in PENALTIES]
        if not all_run([results[c] for c in cells]):
            continue
        early = [mean_curve(results[c], "gap")[2] for c in cells]
        at = mean_curve(results[cells[0]], "round")[2]
        holds.append(all(a <= 1.05 * b for a, b in pairwise(early)))
        early_gaps.append(f"{setting}, round {at:.0f}: " + ", ".join(f"{v:.3g}" for v in early))
    verdict = all(holds) if holds else None
    text = "A larger lam_0 gives a larger gap in the first rounds (lam_0 from 1e-4 to 1, within 5 %)"
    return [Claim(text, verdict, "; ".join(early_gaps), "lam_0")]
