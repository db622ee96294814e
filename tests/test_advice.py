"""Advice: the best measured method among those that may be used, and nothing that was not measured."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fedfw.advice import Measured, MeasuredMethod, MeasuredPoint, MeasuredProblem, advise, measured
from fedfw.config import RunConfig, build_algorithm


def method(title: str, sees: str, projects: bool, *points: tuple[int, float]) -> MeasuredMethod:
    found = tuple(
        MeasuredPoint(up, 10 * up, i + 1, far, 0.9 - far, 0, i + 1)
        for i, (up, far) in enumerate(points)
    )
    return MeasuredMethod(title, "fedfw", sees, projects, ({"momentum": 0.9},), found)


METHODS = (
    method("atoms", "atoms", False, (30, 0.9), (300, 0.5), (3000, 0.3)),
    method("sums", "sums", False, (10_000, 0.1), (100_000, 0.004)),
    method("feedback", "gradients", True, (1000, 0.2), (20_000, 0.009), (50_000, 0.001)),
    method("dense", "gradients", False, (50_000, 0.02), (500_000, 0.0001)),
)
MUCH = MeasuredProblem("much, l1:10", "l1:10", "much", 10, False, "test accuracy", METHODS)
TABLE = Measured(
    (
        MUCH,
        replace(MUCH, title="much, l1:100", constraint="l1:100"),
        replace(MUCH, title="little, l1:10", differ="little"),
        replace(MUCH, title="some, l1:10", differ="little", partial=True),
        replace(MUCH, title="nuclear", constraint="nuclear:10"),
    ),
    quick=False,
)


@pytest.mark.parametrize(
    ("sees", "projection", "bytes_up", "expected"),
    [
        (
            "atoms",
            "cheap",
            None,
            "atoms",
        ),  # nobody reaches 0.01, so it is the one that comes nearest
        ("sums", "cheap", None, "sums"),
        ("gradients", "cheap", None, "feedback"),
        ("gradients", "costly", None, "sums"),
        ("gradients", "cheap", 30.0, "atoms"),  # 300 bytes of 10 clients together
        ("gradients", "cheap", 100.0, "feedback"),
        ("gradients", "costly", 1e6, "dense"),
        ("sums", "cheap", 0.1, "atoms"),  # nothing is so small, and atoms are the smallest
    ],
)
def test_the_best_of_those_that_may_be_used(
    sees: str, projection: str, bytes_up: float | None, expected: str
) -> None:
    advice = advise("l1:10", sees=sees, projection=projection, bytes_up=bytes_up, table=TABLE)
    assert advice.method.title == expected
    assert expected in advice.reasons[0]
    assert len(advice.reasons) == 1  # it is the measured problem itself
    if bytes_up == 100.0:
        assert (advice.point.up, advice.point.residual) == (1000, 0.2)


def test_more_permission_is_never_worse() -> None:
    rising = (
        ("atoms", "costly"),
        ("sums", "costly"),
        ("gradients", "costly"),
        ("gradients", "cheap"),
    )
    for budget in (10.0, 100.0, 1e3, 1e4, 1e5):
        far = [
            advise(
                "l1:10", sees=sees, projection=projection, bytes_up=budget, table=TABLE
            ).point.residual
            for sees, projection in rising
        ]
        assert far == sorted(far, reverse=True)


@pytest.mark.parametrize(
    ("constraint", "differ", "partial", "title", "caveats"),
    [
        ("l1:10", "much", False, "much, l1:10", []),
        ("l1:60", "much", False, "much, l1:100", ["The measured set is l1:100, not l1:60."]),
        ("l1:10", "little", False, "little, l1:10", []),
        ("L1:r=10", "little", False, "little, l1:10", []),
        ("l1:10", "little", True, "some, l1:10", []),
        ("l1:10", "much", True, "some, l1:10", ["differ little, not much"]),
        ("nuclear:10", "little", False, "nuclear", ["differ much, not little"]),
        ("spectral:1", "much", False, "nuclear", ["No problem with a set like spectral:1"]),
        ("birkhoff", "much", False, "much, l1:10", ["No problem with a set like birkhoff"]),
    ],
)
def test_the_nearest_problem_and_what_is_different_there(
    constraint: str, differ: str, partial: bool, title: str, caveats: list[str]
) -> None:
    advice = advise(constraint, differ=differ, partial=partial, table=TABLE)
    assert advice.problem.title == title
    assert len(advice.reasons) == 1 + len(caveats)
    assert all(caveat in said for caveat, said in zip(caveats, advice.reasons[1:], strict=True))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"differ": "a lot"}, "differ='a lot', expected one of little, much"),
        ({"sees": "models"}, "sees='models', expected one of atoms, numbers, sums, gradients"),
        ({"projection": "dear"}, "projection='dear', expected one of auto, cheap, costly"),
        ({"bytes_up": 0.0}, "bytes_up=0.0, expected a positive number"),
        ({"residual": -1.0}, "residual=-1.0, expected a positive number"),
    ],
)
def test_what_is_refused(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        advise("l1:10", table=TABLE, **wrong)  # type: ignore[arg-type]


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(asdict(TABLE)))
    assert Measured.read(file) == TABLE
    for damaged in (
        "",
        "[]",
        "{}",
        '{"problems": [{}], "quick": false}',
        '{"problems": [], "quick": false}',
    ):
        file.write_text(damaged)
        with pytest.raises(
            ValueError, match=r"measured\.json (is damaged|has no problems), expected"
        ):
            Measured.read(file)


def test_everything_in_the_table_of_the_package_can_be_run() -> None:
    for problem in measured().problems:
        for one in problem.methods:
            assert [point.up for point in one.points] == sorted({point.up for point in one.points})
            residuals = [point.residual for point in one.points]
            assert residuals == sorted(residuals, reverse=True)
            for setting in one.settings:
                build_algorithm(
                    RunConfig.of(algorithm=one.algorithm, constraint=problem.constraint, **setting)
                )
    assert {one.sees for problem in measured().problems for one in problem.methods} >= {
        "atoms",
        "sums",
        "gradients",
    }
