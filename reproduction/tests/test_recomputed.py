"""One small cell of every study that is kept, computed again: what is kept is what the code of
today gives.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedfw_reproduction
from fedfw_reproduction.catalogue import sections
from fedfw_reproduction.cells import Central
from fedfw_reproduction.kept import FILE, KeptResults
from fedfw_reproduction.lab import Site
from fedfw_reproduction.protocols import FULL, QUICK
from fedfw_reproduction.regression import coverage

RESULTS = Path(fedfw_reproduction.__file__).parents[1] / "results"
STUDIES = {
    "tables": ("table1", None),
    "steps": ("steps", None),
    "networks": ("networks-convex", "fedlmo"),
    "frontier": ("frontier", "fedavg"),
}
"""A section of each folder, and a method whose path rounding does not change: a vertex of an l1
ball can tip over.
"""
ESTIMATORS = "estimators"
NOT_COMPARED = ("seconds", "took", "machine")


def assert_alike(now: Any, before: Any, where: str = "") -> None:
    """Assert that two results agree up to the order of sums on another machine."""
    if isinstance(before, dict):
        for key in before:
            if key not in NOT_COMPARED:
                assert_alike(now[key], before[key], f"{where}/{key}")
    elif isinstance(before, list):
        assert len(now) == len(before), where
        for number, (one, other) in enumerate(zip(now, before, strict=True)):
            assert_alike(one, other, f"{where}/{number}")
    elif isinstance(before, int | float):
        assert now == pytest.approx(before, rel=1e-2, abs=1e-3), where
    else:
        assert now == before, where


def test_every_study_has_a_cell_here() -> None:
    assert {*STUDIES, ESTIMATORS} == {path.name for path in RESULTS.iterdir()}


def test_a_quick_scenario_gives_what_is_kept() -> None:
    """Of the study of estimators, whose tasks have no configuration of a run."""
    scenario = coverage.cells(QUICK)["linear, strong signals"]
    before = KeptResults(RESULTS / ESTIMATORS / FILE).get(scenario.identity())
    assert before is not None
    assert_alike(json.loads(json.dumps(scenario.compute(Site()))), before)


@pytest.mark.parametrize("study", STUDIES)
def test_a_small_cell_gives_what_is_kept(study: str) -> None:
    """Its data are drawn, so it needs no file."""
    section, algorithm = STUDIES[study]
    kept, found = KeptResults(RESULTS / study / FILE), {}
    for task in sections()[section].tasks(FULL):
        drawn = not isinstance(task, Central) and task.config.dataset.startswith("synthetic")
        wanted = drawn and algorithm in (None, task.config.algorithm)
        if wanted and (result := kept.get(task.identity())) is not None:
            found[task] = result
    smallest = min(found, key=lambda task: found[task]["took"])
    assert_alike(json.loads(json.dumps(smallest.compute(Site()))), found[smallest])
