"""The frontier: what is compared, fronts of points, and the page and the table that come from
results.
"""

import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from pictures import draw_nothing

from fedfw.advice import (
    SEES,
    Measured,
    MeasuredMethod,
    MeasuredPoint,
    MeasuredProblem,
    advise,
    measured,
)
from fedfw.cli import main
from fedfw.config import RunConfig
from fedfw_reproduction.frontier import problems
from fedfw_reproduction.frontier.courses import Task
from fedfw_reproduction.frontier.fronts import Point, front, reached, steps, told
from fedfw_reproduction.frontier.measured import winners
from fedfw_reproduction.frontier.methods import METHODS, depends_on_horizon, grid, seen
from fedfw_reproduction.frontier.problems import FULL, QUICK, Studied
from fedfw_reproduction.lab import Site

DIGITS = RunConfig.of(
    dataset="digits",
    model="mclr",
    clients=10,
    partition="labels:3",
    constraint="l1:10",
    algorithm="fedfw+",
)


def test_every_method_has_a_name_of_its_own_and_at_most_six_settings() -> None:
    assert len({method.title for method in METHODS}) == len(METHODS)
    assert all(1 <= len(set(method.settings)) == len(method.settings) <= 6 for method in METHODS)
    assert {method.sees for method in METHODS} >= {"atoms", "sums", "gradients"}
    assert all(
        {seen(method.algorithm, s) for s in method.settings} == {method.sees} for method in METHODS
    )
    by_title = {method.title: method for method in METHODS}
    assert [by_title[title].projects for title in ("FedFW+", "Frank-Wolfe", "FedAvg")] == [
        False,
        False,
        True,
    ]
    assert all(
        len(problem.budgets) >= 3 for problem in FULL if problem.config.model != "completion"
    )


def test_only_the_optimum_is_shared_by_the_problems_that_differ() -> None:
    tasks = [problem.task(method) for problem in (*FULL, *QUICK) for method in problem.methods]
    assert len(set(tasks)) == len(tasks)
    assert len({problem.central for problem in FULL}) == len(FULL)
    assert all(
        problem.central.tol <= 1e-5 for problem in FULL if problem.config.model != "completion"
    )


def test_a_curve_begins_with_the_curve_of_a_shorter_run() -> None:
    """That is why one run does for three budgets; steps that end with the run are run for each."""
    settings = (*grid(momentum=(0.9,), schedule=("convex",)), *grid(schedule=("linear-decay:0.2",)))
    assert [depends_on_horizon(setting) for setting in settings] == [False, True]
    short, long = (
        Task(DIGITS, settings, budgets).compute(Site())["courses"] for budgets in ((4,), (4, 8))
    )
    assert [(course["setting"], course["rounds"]) for course in long] == [(0, 8), (1, 4), (1, 8)]
    for column in ("round", "loss", "up", "down", "test"):
        assert long[0]["curve"][column][:4] == short[0]["curve"][column]
        assert long[1]["curve"][column] == short[1]["curve"][column]
    assert long[2]["curve"]["loss"][:4] != short[1]["curve"]["loss"]


def test_a_setting_that_fails_is_told_and_the_others_are_run() -> None:
    settings = (*grid(lr=("auto:1",)), *grid(lr=(1e300,)))
    fine, failed = Task(DIGITS.having(algorithm="fedavg"), settings, (3,)).compute(Site())[
        "courses"
    ]
    assert len(fine["curve"]["loss"]) == 3
    assert failed["failed"]
    without = DIGITS.having(algorithm="fedavg", constraint="birkhoff")
    assert "refused" in Task(without, settings[:1], (3,)).compute(Site())["courses"][0]["failed"]


def points(seed: int) -> list[Point]:
    draw = random.Random(seed)
    return [
        Point(
            draw.choice("abc"),
            0,
            draw.randint(1, 50),
            draw.randint(1, 50),
            draw.randint(1, 50),
            draw.random(),
        )
        for _ in range(60)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["up", "down", "both", "round"])
def test_nobody_beats_the_front(seed: int, kind: str) -> None:
    everybody = points(seed)
    best = front(everybody, kind)
    for point in everybody:
        assert any(
            one.cost(kind) <= point.cost(kind) and one.residual <= point.residual for one in best
        )
    for one in best:
        assert not any(
            p.cost(kind) <= one.cost(kind) and p.residual < one.residual for p in everybody
        )
    few = steps(everybody, kind)
    assert set(few) <= set(best)
    assert few[-1] == best[-1]
    for target in (0.5, 0.1, 0.01):
        got = reached(everybody, target, kind)
        costs = [point.cost(kind) for point in everybody if point.residual <= target]
        assert (None if got is None else got.cost(kind)) == min(costs, default=None)


def test_who_wins_where() -> None:
    a = [Point("a", 0, t, 3 * t, 0, 0.9 / t) for t in (1, 2, 3)]
    b = [Point("b", 0, t, 1000 * t, 0, 0.1 / t) for t in (1, 2)]
    begun = Point("c", 0, 1, 1, 0, 0.95)  # it has hardly begun, and holds nothing
    assert told([*b, *a, begun], "up") == "a to 0.3 (9 B), b to 0.05 (2.0 kB)"
    assert told([*b, *a], "round") == "b to 0.05 (2 rounds)"
    assert told([], "up") == "nobody"


@pytest.fixture
def one_problem(monkeypatch: pytest.MonkeyPatch) -> Studied:
    small = replace(QUICK[0], budgets=(3, 6), tol=0.05, max_steps=50)
    no_data = replace(FULL[0], title="not there", budgets=(2,))
    monkeypatch.setattr(problems, "QUICK", (small, no_data))
    return small


def test_the_page_and_the_table_that_advice_is_made_from(
    tmp_path: Path,
    one_problem: Studied,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, empty = tmp_path / "out", tmp_path / "empty"
    arguments = [
        "reproduce",
        "frontier",
        "--quick",
        "--out",
        str(out),
        "--markdown",
        str(out / "page.md"),
    ]
    assert main([*arguments, "--data-dir", str(empty)]) == 0
    assert f"{one_problem.title}  FedFW" in capsys.readouterr().out  # who wins, on the terminal
    page = (out / "page.md").read_text()
    for words in (
        "Who wins where",
        "among those that show atoms alone",
        "up to 0.03",
        "| FedFW+ | atoms | no |",
    ):
        assert words in page
    assert "### not there\n\nNot run: no data" in page
    assert [file.suffix for file in (out / "page").iterdir()] == [".svg"]
    table = Measured.read(out / "measured.json")
    assert table.quick
    assert [problem.title for problem in table.problems] == [one_problem.title]
    advice = advise("l1:10", sees="atoms", table=table)
    assert advice.method.title in ("FedFW", "FedFW+")
    draw_nothing(monkeypatch)
    assert main([*arguments, "--kept"]) == 0
    assert (out / "page.md").read_text().partition("### not there")[0] == page.partition(
        "### not there"
    )[0]


def full_problem(seed: int) -> MeasuredProblem:
    """A problem with four methods for each permission; no two of their points have equal bytes or
    residuals.
    """
    draws = random.Random(seed)
    methods = []
    for sees, projects, number in product(SEES, (False, True), range(4)):
        ups = sorted(draws.sample(range(1, 10**6), 6))
        residuals = sorted((draws.random() for _ in ups), reverse=True)
        points = [
            MeasuredPoint(up, up, place, residual, None, draws.randrange(3), place)
            for place, (up, residual) in enumerate(zip(ups, residuals, strict=True), start=1)
        ]
        settings = tuple({"lr": lr} for lr in (0.1, 0.2, 0.3))
        methods.append(
            MeasuredMethod(
                f"{sees} {projects} {number}", "fedavg", sees, projects, settings, tuple(points)
            )
        )
    return MeasuredProblem("random", "l1:10", "much", 10, False, "test accuracy", tuple(methods))


@pytest.mark.parametrize("seed", range(3))
def test_the_winners_give_the_advice_of_all_that_was_measured(seed: int) -> None:
    full = full_problem(seed)
    few = winners(full)
    assert (
        sum(len(one.points) for one in few.methods)
        < sum(len(one.points) for one in full.methods) / 2
    )
    draws = random.Random(seed)
    for sees, projection, _ in product(SEES, ("cheap", "costly"), range(40)):
        asked = (
            {"bytes_up": 10 ** draws.uniform(-1, 6)}
            if draws.random() < 0.5
            else {"residual": draws.random()}
        )
        answers = [
            advise(
                "l1:10",
                sees=sees,
                projection=projection,
                table=Measured((one,), quick=False),
                **asked,
            )
            for one in (full, few)
        ]
        assert answers[0].to_json() == answers[1].to_json()


def test_the_table_of_the_package_has_winners_alone() -> None:
    for problem in measured().problems:
        assert winners(problem) == problem
