"""The page: for each problem who wins where, a table, and a picture with the fronts; and the bars
as claims.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fedfw.report import human_bytes
from fedfw_reproduction.document import Document, csv_text
from fedfw_reproduction.figures import Claim, Done, panels
from fedfw_reproduction.frontier.fronts import BEGUN, LEAST, TARGETS, Point, front, reached, told
from fedfw_reproduction.frontier.measured import table_of
from fedfw_reproduction.frontier.methods import Method, Setting, depends_on_horizon
from fedfw_reproduction.frontier.problems import Studied, studied
from fedfw_reproduction.lab import Json, Wanted, was_run
from fedfw_reproduction.protocols import Scale

GROUPS: dict[str, Callable[[Method], bool]] = {
    "among all": lambda method: True,
    "among those that show atoms alone": lambda method: method.sees == "atoms",
    "among those that need no projection": lambda method: not method.projects,
}
_AXES = {"up": "bytes up", "down": "bytes down", "both": "bytes up and down", "round": "rounds"}
RMSE = 0.925
"""The test error that is asked for in matrix completion."""
_EF21 = ("frank-wolfe", "fedavg", "fedpgd")
OPTIMUM = "optimum"
Found = Mapping[Studied, Mapping[str, Done]]
"""What was done for each problem: its optimum, and every method by its title."""


def cells(scale: Scale) -> dict[Studied, dict[str, Wanted]]:
    """Return the tasks of each problem, the optimum first: it is the longest single task."""
    return {
        problem: {OPTIMUM: problem.central}
        | {method.title: problem.task(method) for method in problem.methods}
        for problem in studied(scale)
    }


def show(scale: Scale, found: Found, page: Document) -> None:
    page.text(
        "Every method takes one full gradient a round. Up to six settings of each are run once, with seed 0, and the "
        "best is told for each column; settings are chosen by the training loss, which is what all of them minimise. "
        "The residual is (F - F*)/(F(x^1) - F*). Bytes are payloads of all clients together, up to the first round "
        "at which the run was looked at and had reached the residual; rounds that are looked at grow by a fifth."
    )
    looks = {problem: points_of(problem, row) for problem, row in found.items()}
    page.heading("Who wins where, by bytes up", 3)
    winners = [_winners(problem, points) for problem, points in looks.items() if points]
    page.table(("problem", *GROUPS), winners)
    page.text(
        "Each holds the front of all curves up to the residual that is named, which it has reached with the bytes in "
        "brackets. Steps of the front below a fifth are left out, and what is above 0.9."
    )
    for problem, points in looks.items():
        page.heading(problem.title, 3)
        if points:
            _show(problem, points, found[problem], page)
        else:
            page.text(f"Not run: {_why_not(found[problem])}.")


def files(scale: Scale, found: Found) -> dict[str, str]:
    """Return the table that `fedfw advise` reads, a line a problem."""
    looks = [(problem, points_of(problem, row)) for problem, row in found.items()]
    shown = [(problem, points) for problem, points in looks if points is not None]
    table = asdict(table_of(shown, quick=scale.quick))
    lines = ",\n".join(json.dumps(problem, separators=(",", ":")) for problem in table["problems"])
    return {"measured.json": f'{{"quick":{json.dumps(table["quick"])},"problems":[\n{lines}\n]}}\n'}


def points_of(problem: Studied, row: Mapping[str, Done]) -> dict[str, list[Point]] | None:
    """All looks at all runs by method; None where the optimum, or everything else, is missing."""
    central = row[OPTIMUM].result
    if not was_run(central):
        return None
    looks = {
        method.title: _points(method, row[method.title].result, central)
        for method in problem.methods
        if was_run(row[method.title].result)
    }
    return looks if any(looks.values()) else None


def _points(method: Method, result: Json, central: Json) -> list[Point]:
    optimum = central["seeds"][0]
    scale = max(optimum["start_value"] - optimum["value"], 1e-300)
    found = []
    for course in result["courses"]:
        if "failed" in course:
            continue
        c, of = (
            course["curve"],
            course["rounds"] if depends_on_horizon(method.settings[course["setting"]]) else 0,
        )
        for t, loss, test, up, down in zip(
            c["round"], c["loss"], c["test"], c["up"], c["down"], strict=True
        ):
            residual = max((loss - optimum["value"]) / scale, LEAST)
            found.append(
                Point(method.title, course["setting"], t, up, down, residual, test, of or t)
            )
    return found


def _why_not(row: Mapping[str, Done]) -> str:
    """Return why the first task that is missing is missing."""
    reasons = (
        f"{done.result['not_run']} ({done.result['why'].partition(':')[0]})"
        for done in row.values()
        if not was_run(done.result)
    )
    return next(reasons, "every setting failed")


def _show(
    problem: Studied, points: Mapping[str, list[Point]], row: Mapping[str, Done], page: Document
) -> None:
    methods = {method.title: method for method in problem.methods if points.get(method.title)}
    everybody = [point for own in points.values() for point in own]
    page.text(
        f"By bytes in both directions: {told(everybody, 'both')}. By rounds: {told(everybody, 'round')}."
    )
    optimum = row[OPTIMUM].result["seeds"][0]
    known = f"F* = {optimum['value']:.5f}, known to {optimum['uncertainty']:.1g} of F(x^1) - F*"
    right = (
        ""
        if optimum["accuracy"] is None
        else f"; its test accuracy is {100 * optimum['accuracy']:.1f} %"
    )
    page.text(f"{known}{right}. Runs of {', '.join(map(str, problem.budgets))} rounds.")
    asked = [f"up to {target:g}" for target in TARGETS]
    header = (
        "method",
        "shows",
        "projects",
        *asked,
        "down",
        "rounds",
        "least residual",
        problem.scored_by,
        "setting",
    )
    rows = [_row(method, points[title]) for title, method in methods.items()]
    page.table(header, [row for _, row in sorted(rows, key=lambda row: row[0])])
    if problem.is_completion:
        _show_errors(problem, points, page)
    if failed := _failures(problem, row):
        page.text(f"Left out: {'; '.join(failed)}.")
    _draw(problem, points, page, "residual")


def _show_errors(problem: Studied, points: Mapping[str, list[Point]], page: Document) -> None:
    """The same with the test error in place of the residual."""
    judged = {
        title: [replace(p, residual=p.test) for p in own if p.test is not None]
        for title, own in points.items()
    }
    found = {title: reached(own, RMSE, "up") for title, own in judged.items()}
    rows = [
        (title, human_bytes(point.up), human_bytes(point.down), str(point.round))
        for title, point in sorted(found.items(), key=lambda pair: pair[1].up if pair[1] else 0)
        if point is not None
    ]
    page.table((f"to test RMSE {RMSE:g}", "up", "down", "rounds"), rows)
    if never := [title for title, point in found.items() if point is None]:
        page.text(f"Never there: {', '.join(never)}.")
    _draw(problem, judged, page, "test RMSE")


def _winners(problem: Studied, points: Mapping[str, list[Point]]) -> list[str]:
    """One line of the first table."""
    chosen = ([one.title for one in problem.methods if belongs(one)] for belongs in GROUPS.values())
    return [
        problem.title,
        *(told([p for title in mine for p in points.get(title, [])], "up") for mine in chosen),
    ]


def _row(method: Method, points: Sequence[Point]) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """What rows are sorted by, and a row; ``down`` and ``rounds`` belong to the last residual that
    was reached.
    """
    got = [reached(points, target, "up") for target in TARGETS]
    best = min(points, key=lambda point: (point.residual, point.up))
    last = next((point for point in reversed(got) if point is not None), None)
    cells = (
        method.title,
        method.sees,
        "yes" if method.projects else "no",
        *("-" if point is None else human_bytes(point.up) for point in got),
        "-" if last is None else human_bytes(last.down),
        "-" if last is None else str(last.round),
        f"{best.residual:.2g}",
        "-" if best.test is None else f"{best.test:.4f}",
        worded(method.settings[(last or best).setting]),
    )
    order = tuple(float("inf") if point is None else float(point.up) for point in reversed(got))
    return (*order, best.residual), cells


def worded(setting: Setting) -> str:
    """A setting as the command line would have it, without dashes."""
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in setting)


def _failures(problem: Studied, row: Mapping[str, Done]) -> list[str]:
    found: dict[str, list[str]] = {}
    for method in problem.methods:
        result = row[method.title].result
        if not was_run(result):
            found.setdefault(result["not_run"], []).append(method.title)
            continue
        for course in result["courses"]:
            if "failed" in course:
                words = f"{method.title} with {worded(method.settings[course['setting']])}"
                found.setdefault(course["failed"], []).append(words)
    return [f"{why}: {', '.join(dict.fromkeys(what))}" for why, what in found.items()]


def _draw(problem: Studied, points: Mapping[str, list[Point]], page: Document, what: str) -> None:
    figure, axes = panels(len(_AXES), 4.2)
    everybody = [point for own in points.values() for point in own]
    fronts = {kind: front(everybody, kind) for kind in _AXES}
    holders = dict.fromkeys(point.method for holding in fronts.values() for point in holding)
    for axis, (kind, label) in zip(axes, _AXES.items(), strict=True):
        holding = fronts[kind]
        for own in points.values():
            axis.loglog(*_xy(front(own, kind), kind), color="grey", alpha=0.4, lw=0.7)
        axis.loglog(*_xy(holding, kind), color="black", lw=1.5, drawstyle="steps-post")
        for i, title in enumerate(holders):
            if mine := [point for point in holding if point.method == title]:
                axis.loglog(
                    *_xy(mine, kind), "os^Dv"[i // 10 % 5], color=f"C{i % 10}", ms=4, label=title
                )
        axis.set(xlabel=label, ylabel=what if kind == "up" else "")
        axis.legend(fontsize="xx-small")
        axis.minorticks_off()  # their grid is most of the picture's bytes
    rows = [
        (point.method, point.setting, point.round, point.up, point.down, point.residual, point.test)
        for point in everybody
    ]
    name = "".join(c if c.isalnum() else "-" for c in f"{problem.title} {what}".lower())
    caption = f"{problem.title}, {what}: every method at its best (grey), the Pareto front (black) and who holds it"
    data = csv_text(("method", "setting", "round", "up", "down", what, "test"), rows)
    page.plot(figure, caption, data, "-".join(part for part in name.split("-") if part))


def _xy(points: Sequence[Point], kind: str) -> tuple[list[int], list[float]]:
    return [point.cost(kind) for point in points], [point.residual for point in points]


# --- what was asked for ---


def claims(scale: Scale, found: Found) -> list[Claim]:
    """Return the bars that were set for this study; a quick run decides none."""
    if scale.quick:
        return []
    made = []
    looks = {problem.title: (problem, points_of(problem, row)) for problem, row in found.items()}
    _, hard = looks["MNIST, 3 labels, l1:10"]
    for title, residual, budget in (
        ("EF21-PGD top-64", 0.004, 250e3),
        ("accelerated EF21 top-128", 0.001, 500e3),
    ):
        points = (hard or {}).get(title, [])
        mine = [point for point in points if point.round <= 100 and point.up <= budget]
        best = min(mine, key=lambda point: point.residual, default=None)
        text = f"{title}, MNIST, 3 labels, l1:10: residual {residual:g} in 100 rounds and {human_bytes(budget)} up"
        said = "not run" if best is None else f"{best.residual:.2g} at {human_bytes(best.up)}"
        made.append(
            Claim(text, None if best is None else best.residual <= residual, said, "The frontier")
        )
    for constraint in ("l1:10", "nuclear:10", "ksparse:k=100,r=0.3"):
        problem, points_there = looks[f"MNIST, 3 labels, {constraint}"]
        made.append(_ours_somewhere(problem, points_there or {}))
    return made


def _ours_somewhere(problem: Studied, points: Mapping[str, list[Point]]) -> Claim:
    """Whether a method of ours is on the front of bytes up beside error feedback."""
    methods = {method.title: method for method in problem.methods if points.get(method.title)}
    feedback = [title for title, method in methods.items() if _is_feedback(method)]
    ours = [
        title
        for title, method in methods.items()
        if method.algorithm.startswith(("fedfw", "fedlmo"))
    ]
    text = f"{problem.title}: a method of ours is below the front of error feedback somewhere, by bytes up"
    if not feedback or not ours:
        return Claim(text, None, "not run", "The frontier")
    both = [point for title in (*feedback, *ours) for point in points[title]]
    mine = [
        point for point in front(both, "up") if point.method in ours and point.residual <= BEGUN
    ]
    said = told(both, "up")
    return Claim(text, bool(mine), said, "The frontier")


def _is_feedback(method: Method) -> bool:
    options: dict[str, Any] = dict(method.settings[0])
    return method.algorithm in _EF21 and not str(options.get("compress", "bits")).startswith("bits")
