"""``fedfw reproduce``: experiments run by name, kept as they finish, and shown on one page."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.figure import Figure

from fedfw._version import __version__
from fedfw.experiments.theory import Effort, Study, studies
from fedfw.report.html import Cell, Page
from fedfw.report.tables import aligned
from fedfw.simulation.files import write_atomically

_TITLES = {
    "T1": "T1: FedFW, convex losses",
    "T1p": "T1p: FedFW, convex losses, clients that take part with probability p",
    "T2": "T2: FedFW, losses that are not convex",
    "T2p": "T2p: the same with absentees",
    "T3": "T3: FedFW-sto, noisy gradients",
    "anchors": "Anchored FedFW, convex losses",
    "": "No theorem: slopes as measured",
}


def reproduce_theory(quick: bool, out: Path) -> int:
    """Put every bound to the test; the exit status is 1 when one fails."""
    effort = Effort.quick() if quick else Effort()
    begin = time.monotonic()
    found = _run_all(effort, out / "cache")
    seconds = time.monotonic() - begin
    failed = [study for study in found if not study.passed]
    print(aligned([("bound", "setting", "held", "of the bound", "slope", "asked", ""), *map(_row, found)]))
    page = _page(found, effort, quick, seconds)
    page.save(out / "theory.html")
    proven = [study for study in found if study.bound]
    print(f"\n{len(proven) - len(failed)} of {len(proven)} studies of a bound passed; report: {out / 'theory.html'}")
    for study in failed:
        print(f"failed: {study.bound} on {study.setting}", file=sys.stderr)
    return 1 if failed else 0


def _run_all(effort: Effort, cache: Path) -> list[Study]:
    """What is in the cache is not computed again, so an interrupted call goes on where it stopped."""
    todo = list(studies(effort))
    found: list[Study] = []
    begin, computed = time.monotonic(), 0
    for number, (title, run) in enumerate(todo):
        key = hashlib.sha256(f"{__version__} {title} {effort}".encode()).hexdigest()[:16]
        path = cache / f"{key}.json"
        if not path.is_file():
            left = (time.monotonic() - begin) / computed * (len(todo) - number) if computed else None
            remaining = "" if left is None else f", about {left:.0f} s left"
            print(f"{number + 1}/{len(todo)} {title}{remaining}", file=sys.stderr, flush=True)
            write_atomically(path, json.dumps([study.to_json() for study in run()]).encode())
            computed += 1
        found += map(Study.from_json, json.loads(path.read_text()))
    return found


def _row(study: Study) -> tuple[str, ...]:
    return (
        study.bound or "-",
        study.setting,
        "-" if study.limit is None else f"{study.held} of {len(study.t)}",
        "-" if study.tightness is None else f"{study.tightness:.3f}",
        f"{study.slope:.2f}",
        "-" if study.steepest is None else f"<= {study.steepest:.2f}",
        "no theorem" if not study.bound else "ok" if study.passed else "FAILED",
    )


def _page(found: list[Study], effort: Effort, quick: bool, seconds: float) -> Page:
    page = Page("FedFW: the theory put to the test" + (" (quick)" if quick else ""))
    failed = [study for study in found if not study.passed]
    proven = [study for study in found if study.bound]
    points = sum(len(study.t) for study in proven)
    held = sum(study.held for study in proven)
    page.text(
        f"Bounds held at {held} of {points} points of {len(proven)} studies; {len(failed)} studies failed. "
        "Every study compares runs on random quadratics, whose constants are known, with the bound and its constants."
    )
    for bound, title in _TITLES.items():
        group = [study for study in found if study.bound == bound]
        if not group:
            continue
        page.heading(title)
        header = ("setting", "bound held", "largest share of the bound", "slope", "exponent", "asked for", "")
        page.table(header, [_cells(study) for study in group])
        page.figure(_plot(group), "solid: measured; dotted: the bound", _csv(group), bound or "no-theorem")
    page.footer(
        [
            f"fedfw {__version__}, torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}",
            f"{time.strftime('%Y-%m-%d')}, {seconds:.0f} s, {effort}",
        ]
    )
    return page


def _cells(study: Study) -> list[Cell]:
    _, setting, held, share, slope, asked, verdict = _row(study)
    kind = "plain" if not study.bound else "good" if study.passed else "bad"
    exponent = "-" if study.exponent is None else f"{study.exponent:.2f}"
    return [setting, held, share, slope, exponent, asked, (verdict, kind)]


def _plot(group: list[Study]) -> Figure:
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
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("setting", "t", "measured", "bound"))
    for study in group:
        limits = study.limit.tolist() if study.limit is not None else [""] * len(study.t)
        for t, measured, limit in zip(study.t.tolist(), study.measured.tolist(), limits, strict=True):
            writer.writerow((study.setting, t, measured, limit))
    return text.getvalue()


REPRODUCTIONS: dict[str, Callable[[bool, Path], int]] = {"theory": reproduce_theory}
"""What can be reproduced, by name."""
