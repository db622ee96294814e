"""The bounds of `fedfw_reproduction.theory` against their studies, as a section of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfw_reproduction.document import Cell as TableCell
from fedfw_reproduction.document import Document, csv_text
from fedfw_reproduction.figures import Claim, Done
from fedfw_reproduction.lab import Json, Site
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.schema import Identity, identity
from fedfw_reproduction.study import QUICK, Effort, Study
from fedfw_reproduction.theory import studies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {
    "T1": "T1: FedFW, convex losses",
    "T1p": "T1p: FedFW, convex losses, clients that take part with probability p",
    "T2": "T2: FedFW, losses that are not convex",
    "T2p": "T2p: the same with absentees",
    "T3": "T3: FedFW-sto, noisy gradients",
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
        effort = {
            "rounds": self.effort.rounds,
            "seeds": self.effort.seeds,
            "every": self.effort.every,
        }
        return identity("bound", name=self.study, effort=effort)

    def compute(self, site: Site) -> Json:
        return {"studies": [study.to_json() for study in dict(studies(self.effort))[self.study]()]}


def cells(scale: Scale) -> list[StudyTask]:
    effort = QUICK if scale.quick else Effort()
    return [StudyTask(title, effort) for title, _ in studies(effort)]


def show(scale: Scale, done: list[Done], page: Document) -> None:
    found = _studies(done)
    points, held = sum(len(study.t) for study in found), sum(study.held for study in found)
    passed = sum(study.passed for study in found)
    page.text(
        f"Bounds held at {held} of {points} points; {passed} of {len(found)} studies of a bound passed. Every study "
        "compares runs on random quadratics, whose constants are known, with the bound and its constants "
        f"({done[0].task.effort})."
    )
    for bound, title in _TITLES.items():
        group = [study for study in found if study.bound == bound]
        if not group:
            continue
        page.heading(title, 3)
        header = (
            "setting",
            "bound held",
            "largest share of the bound",
            "slope",
            "exponent",
            "asked for",
            "",
        )
        page.table(header, [_cells(study) for study in group])
        page.plot(
            _plot(group),
            f"{title} (solid: measured; dotted: the bound)",
            _csv(group),
            f"theory-{bound}",
        )


def claims(scale: Scale, done: list[Done]) -> list[Claim]:
    found = _studies(done)
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
        what = f"{passed} of {len(group)} studies passed (with constants corrected, docs/studies/theory.md)"
        if slopes:
            what += f"; slopes from {min(slopes):.2f} to {max(slopes):.2f}"
        verdicts.append(Claim(text, passed == len(group) if group else None, what, "Theory"))
    return verdicts


def failures(done: list[Done]) -> list[str]:
    """The studies whose bound did not hold."""
    return [f"{study.bound} on {study.setting}" for study in _studies(done) if not study.passed]


def _studies(done: list[Done]) -> list[Study]:
    return [Study.from_json(text) for one in done for text in one.result["studies"]]


def _cells(study: Study) -> list[TableCell]:
    return [
        study.setting,
        f"{study.held} of {len(study.t)}",
        f"{study.tightness:.3f}",
        f"{study.slope:.2f}",
        f"{study.exponent:.2f}",
        "-" if study.steepest is None else f"<= {study.steepest:.2f}",
        ("ok", "good") if study.passed else ("FAILED", "bad"),
    ]


def _plot(group: list[Study]) -> Figure:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axis = figure.subplots()
    for i, study in enumerate(group):
        color = colormaps["tab20"](i % 20)
        axis.loglog(study.t, study.measured.clamp(min=1e-15), color=color, label=study.setting)
        axis.loglog(study.t, study.limit, ":", color=color)
    axis.set(xlabel="round or horizon", ylabel="F(xbar) - F*, or mean gap")
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize="x-small", ncols=2)
    return figure


def _csv(group: list[Study]) -> str:
    rows: list[tuple[object, ...]] = []
    for study in group:
        columns = (study.t.tolist(), study.measured.tolist(), study.limit.tolist())
        rows += [(study.setting, *values) for values in zip(*columns, strict=True)]
    return csv_text(("setting", "t", "measured", "bound"), rows)
