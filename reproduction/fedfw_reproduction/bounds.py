"""The bounds of `fedfw_reproduction.theory` against their studies, as a section of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfw.report import document
from fedfw.report.document import Document, csv_text
from fedfw_reproduction.figures import Claim
from fedfw_reproduction.lab import Json, Results, Site, Task
from fedfw_reproduction.lmo_theory import STUDIED
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.schema import Identity, identity
from fedfw_reproduction.study import Effort, Study
from fedfw_reproduction.theory import studies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {
    "T1": "T1: FedFW, convex losses",
    "T1p": "T1p: FedFW, convex losses, clients that take part with probability p",
    "T2": "T2: FedFW, losses that are not convex",
    "T2p": "T2p: the same with absentees",
    "T3": "T3: FedFW-sto, noisy gradients",
    "anchors": "Anchored FedFW, convex losses",
    **{f"lmo-{name}": f"FedLMO on {name}, every round: F after it against the theorem's bound" for name in STUDIED},
    "lmo-rate": "FedLMO, convex losses, everybody present: the rate",
    "": "No theorem: slopes as measured",
}


@dataclass(frozen=True)
class StudyTask:
    """One entry of `fedfw_reproduction.theory.studies`."""

    study: str
    effort: Effort

    @property
    def title(self) -> str:
        return f"theory, {self.study}"

    @property
    def weight(self) -> float:
        return self.effort.rounds / 20

    def identity(self) -> Identity:
        effort = {"rounds": self.effort.rounds, "seeds": self.effort.seeds, "every": self.effort.every}
        return identity("bound", name=self.study, effort=effort)

    def compute(self, site: Site) -> Json:
        return {"studies": [study.to_json() for study in dict(studies(self.effort))[self.study]()]}


def tasks(scale: Scale) -> list[Task]:
    effort = _effort(scale)
    return [StudyTask(title, effort) for title, _ in studies(effort)]


def show(scale: Scale, results: Results, page: Document) -> None:
    found = _studies(scale, results)
    proven = [study for study in found if study.bound]
    points, held = sum(len(study.t) for study in proven), sum(study.held for study in proven)
    failed = [study for study in proven if not study.passed]
    page.text(
        f"Bounds held at {held} of {points} points; {len(proven) - len(failed)} of {len(proven)} studies of a bound "
        "passed. Every study compares runs on random quadratics, whose constants are known, with the bound and its "
        f"constants ({_effort(scale)})."
    )
    for bound, title in _TITLES.items():
        group = [study for study in found if study.bound == bound]
        if not group:
            continue
        page.heading(title, 3)
        header = ("setting", "bound held", "largest share of the bound", "slope", "exponent", "asked for", "")
        page.table(header, [_cells(study) for study in group])
        name = f"theory-{bound or 'no-theorem'}"
        page.plot(_plot(group), f"{title} (solid: measured; dotted: the bound)", _csv(group), name)


def claims(scale: Scale, results: Results) -> list[Claim]:
    found = _studies(scale, results)
    texts = {
        "T1": "FedFW converges at O(t^-1/2) on convex losses",
        "T2": "FedFW's gap falls at O(t^-1/3) on losses that are not convex",
        "T3": "FedFW-sto converges at O(t^-1/3)",
    }
    verdicts = []
    for bound, text in texts.items():
        group = [study for study in found if study.bound in (bound, f"{bound}p")]
        slopes = [study.slope for study in group if study.steepest is not None]
        passed = sum(study.passed for study in group)
        what = f"{passed} of {len(group)} studies passed (with constants corrected, docs/theory.md)"
        if slopes:
            what += f"; slopes from {min(slopes):.2f} to {max(slopes):.2f}"
        verdicts.append(Claim(text, passed == len(group) if group else None, what, "Theory"))
    return verdicts


def failures(scale: Scale, results: Results) -> list[str]:
    """The studies whose bound did not hold."""
    return [f"{study.bound} on {study.setting}" for study in _studies(scale, results) if not study.passed]


def _effort(scale: Scale) -> Effort:
    return Effort.quick() if scale.quick else Effort()


def _studies(scale: Scale, results: Results) -> list[Study]:
    return [Study.from_json(text) for task in tasks(scale) for text in results[task]["studies"]]


def _cells(study: Study) -> list[document.Cell]:
    verdict = "no theorem" if not study.bound else "ok" if study.passed else "FAILED"
    kind = "plain" if not study.bound else "good" if study.passed else "bad"
    return [
        study.setting,
        "-" if study.limit is None else f"{study.held} of {len(study.t)}",
        "-" if study.tightness is None else f"{study.tightness:.3f}",
        f"{study.slope:.2f}",
        "-" if study.exponent is None else f"{study.exponent:.2f}",
        "-" if study.steepest is None else f"<= {study.steepest:.2f}",
        (verdict, kind),
    ]


def _plot(group: list[Study]) -> Figure:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axis = figure.subplots()
    for i, study in enumerate(group):
        color = colormaps["tab20"](i % 20)
        axis.loglog(study.t, study.measured.clamp(min=1e-15), color=color, label=study.setting)
        if study.limit is not None:
            axis.loglog(study.t, study.limit, ":", color=color)
    axis.set(xlabel="round or horizon", ylabel="F(xbar) - F*, or mean gap")
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize="x-small", ncols=2)
    return figure


def _csv(group: list[Study]) -> str:
    rows: list[tuple[object, ...]] = []
    for study in group:
        limits = study.limit.tolist() if study.limit is not None else [""] * len(study.t)
        rows += [
            (study.setting, *values) for values in zip(study.t.tolist(), study.measured.tolist(), limits, strict=True)
        ]
    return csv_text(("setting", "t", "measured", "bound"), rows)
