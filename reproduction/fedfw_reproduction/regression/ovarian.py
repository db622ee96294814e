"""Ovarian cancer in four studies: a sparse Cox model whose clients are studies, beside pooled and
single fits and meta-analyses. The protocol is docs/studies/ovarian.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedfw_reproduction.document import Document, csv_text
from fedfw_reproduction.figures import Claim, Done, panels
from fedfw_reproduction.lab import Json, was_run
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.regression.ovarian_tasks import (
    ALONE,
    COXNET,
    FEDERATED,
    META_GENES,
    META_LASSO,
    POOLED,
    STUDIES,
    Coxnet,
    LeftOut,
    Stability,
)

RADII = (0.05, 0.1, 0.2, 0.4, 0.7, 1.2, 2.0, 3.5)
FOLDS = 5
DRAWS = 500
PAIRS = 50
STABLE = 0.75
COMPARED = (POOLED, META_LASSO, META_GENES)


def cells(scale: Scale) -> dict[str, dict[int, Any] | Stability]:
    """By what they are for, and by the study that is left out."""
    radii = RADII[1::3] if scale.quick else RADII
    folds = 2 if scale.quick else FOLDS
    studies = STUDIES[:1] if scale.quick else STUDIES
    return {
        "left out": {
            study: LeftOut(study, radii, folds, 20 if scale.quick else DRAWS) for study in studies
        },
        "coxnet": {study: Coxnet(study, folds) for study in studies},
        "stability": Stability(radii, folds, 2 if scale.quick else PAIRS),
    }


def show(scale: Scale, done: Mapping[str, Any], page: Document) -> None:
    found = {study: one.result for study, one in done["left out"].items()}
    if not all(map(was_run, found.values())):
        page.text("not run: no data")
        return
    page.text(
        "Cox's model of 158 genes in an l1 ball, in three of four studies, and its concordance in the fourth. Studies "
        "are clients and strata. The protocol is that of docs/studies/ovarian.md. Errors are of a bootstrap over the "
        "patients of the study that is left out."
    )
    page.table(
        (
            "concordance in study",
            *(f"{study} ({r['events']} events)" for study, r in found.items()),
            "mean",
            "genes",
        ),
        [_row(name, [_of(found, name, study) for study in found]) for name in _names(found)]
        + [_row(COXNET, [_of_coxnet(done["coxnet"], study) for study in found])],
    )
    page.table(
        ("federated lasso and", "mean difference", "error"),
        [(name, *(f"{value:+.3f}" for value in difference(found, name))) for name in COMPARED],
    )
    page.table(
        (
            "study left out",
            "radius",
            "genes",
            "certified gap",
            "bytes of the fit",
            "with all folds",
        ),
        [
            (
                str(study),
                f"{r['fits'][FEDERATED]['radius']:g}",
                str(len(r["genes"])),
                f"{r['fits'][FEDERATED]['gap']:.1e}",
                f"{r['bytes'] // 3:,}",
                f"{(r['bytes'] + r['bytes_of_choice']) // 3:,}",
            )
            for study, r in found.items()
        ],
    )
    page.text("Bytes are what a study sends, without transport.")
    _show_stability(done["stability"], page)
    _picture(found, done["stability"].result, page)


Found = Mapping[int, Json]


def _names(found: Found) -> list[str]:
    """Return the methods' names, single studies in order."""
    alone = [ALONE.format(study) for study in STUDIES]
    present = {name for result in found.values() for name in result["methods"]}
    return [n for n in (FEDERATED, POOLED, *alone, META_LASSO, META_GENES) if n in present]


def _of(found: Found, name: str, study: int) -> Json | None:
    entry: Json | None = found[study]["methods"].get(name) if study in found else None
    return entry


def _of_coxnet(done: Mapping[int, Done], study: int) -> Json | None:
    if study not in done or not was_run(done[study].result):
        return None
    return done[study].result


def _row(name: str, entries: Sequence[Json | None]) -> tuple[str, ...]:
    """Return a method's row from what it reached in each study that is left out."""
    if all(one is None for one in entries):
        return (name, *("not run" for _ in entries), "", "")
    shown = [
        "-"
        if one is None
        else f"{one['concordance']:.3f}" + (f" ± {one['error']:.3f}" if name != COXNET else "")
        for one in entries
    ]
    present = [one for one in entries if one is not None]
    whole = len(present) == len(entries)
    mean = f"{np.mean([one['concordance'] for one in present]):.3f}" if whole else ""
    genes = sorted({one["genes"] for one in present})
    return (name, *shown, mean, f"{genes[0]} to {genes[-1]}" if len(genes) > 1 else str(genes[0]))


def difference(found: Found, name: str) -> tuple[float, float]:
    """Return the mean over studies of the federated concordance less a method's, and its error:
    studies are independent.
    """
    gaps = []
    variances = []
    for result in found.values():
        methods = result["methods"]
        gaps.append(methods[FEDERATED]["concordance"] - methods[name]["concordance"])
        variances.append(methods[name]["difference_error"] ** 2)
    return float(np.mean(gaps)), float(np.sqrt(np.sum(variances)) / len(gaps))


def _show_stability(done: Done, page: Document) -> None:
    """Show the genes that recur, and how many of them may be false."""
    if not was_run(done.result):
        return
    shares = done.result["shares"]
    mean = sum(shares.values())
    bound = mean**2 / ((2 * STABLE - 1) * len(shares))
    stable = sorted((gene for gene in shares if shares[gene] >= STABLE), key=lambda g: -shares[g])
    page.text(
        f"Stability selection on all four studies at radius {done.result['radius']:g}, which their folds choose: "
        f"{done.task.pairs} complementary pairs of halves of every study, each with {mean:.1f} genes on average. At "
        f"most {bound:.1f} of the genes that are selected in {STABLE:.0%} of the halves are expected to be false, by "
        "the bound of Meinshausen and Bühlmann. Hazard ratios are those of the fit to all patients, which the ball "
        "shrinks."
    )
    page.table(
        ("gene", "selected in", "hazard ratio of a deviation"),
        [
            (gene, f"{shares[gene]:.0%}", f"{np.exp(done.result['coef'][gene]):.2f}")
            for gene in stable
        ],
    )


def _picture(found: Found, stability: Json, page: Document) -> None:
    """Draw the concordance of each method in each study, and the losses that choose the radius."""
    figure, (left, right) = panels(2)
    numbers: list[tuple[object, ...]] = []
    names = _names(found)
    for place, study in enumerate(found):
        for i, name in enumerate(names):
            one = _of(found, name, study)
            if one is None:
                continue
            left.errorbar(
                place + (i - len(names) / 2) / 12,
                one["concordance"],
                yerr=one["error"],
                fmt="o",
                ms=3,
                lw=0.8,
                color=f"C{i}",
                label=name if place == 1 or name == ALONE.format(STUDIES[1]) else None,
            )
            numbers.append(("concordance", name, study, one["concordance"]))
    left.axhline(0.5, color="0.7", lw=0.8)
    left.set_xticks(range(len(found)), [f"study {study}" for study in found])
    left.set(ylabel="concordance in the study that is left out", ylim=(0.35, None))
    handles = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
    shown = [name for name in names if name in handles]
    left.legend([handles[n] for n in shown], shown, fontsize="xx-small", ncols=2, loc="lower left")
    curves = {f"without {study}": r["fits"][FEDERATED]["losses"] for study, r in found.items()}
    if was_run(stability):
        curves["all four"] = stability["losses"]
    for name, losses in curves.items():
        radii = RADII if len(losses) == len(RADII) else RADII[1::3]
        relative = [loss - losses[0] for loss in losses]
        right.semilogx(radii, relative, "o-", base=2, lw=0.8, ms=3, label=name)
        numbers += [
            ("held-out loss", name, radius, loss)
            for radius, loss in zip(radii, losses, strict=True)
        ]
    right.set(xlabel="radius", ylabel="held-out loss, less that of the smallest radius")
    right.legend(fontsize="x-small")
    page.plot(
        figure,
        "Concordance in the study that is left out, with bootstrap errors (left); what chose the radius (right)",
        csv_text(("measure", "method", "study or radius", "value"), numbers),
        "ovarian",
    )


def claims(scale: Scale, done: Mapping[str, Any]) -> list[Claim]:
    """Whether the federated lasso is as good as the pooled one, and better than meta-analyses."""
    found = {study: one.result for study, one in done["left out"].items()}
    if not all(map(was_run, found.values())):
        return []
    made = []
    for name in COMPARED:
        value, error = difference(found, name)
        text = f"the federated lasso orders patients of another study at least as well as: {name}"
        shown = f"mean difference of concordance {value:+.3f} ± {error:.3f}"
        made.append(Claim(text, value >= 0, shown, "Ovarian cancer"))
    return made
