"""The promise of docs/promise.md: what is public changes only with a line in BREAKING.md, and run
folders of 1.0 load.
"""

from pathlib import Path

import pytest

import fedfw
from fedfw._version import __version__
from fedfw.config import build_algorithm, read_config

pytest.importorskip("flwr")  # the bridge and the commands of deployments are compared, too
from scripts.signatures import (
    BREAKING,
    FILE,
    SECTION,
    name_of,
    promised,
    released_version,
    signatures,
    unannounced,
)

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
KEPT = Path(__file__).parent / "kept" / "run-1.0"
"""A run folder of 1.0: `fedfw run --clients 2 --rounds 3 --constraint l1:2 --algorithm fedfw`."""
BEFORE = [
    "fedfw.solve(problem, *, tol=0.1)",
    "fedfw.Run.save(self, folder)",
    "fedfw run --lr VALUE",
    "key of a run: lr",
]


def test_public_signatures_are_those_of_the_last_version() -> None:
    changed = unannounced(promised(), signatures(), BREAKING.read_text(encoding="utf-8"))
    assert not changed, "name these in BREAKING.md, in backticks, or leave them as they were"


@pytest.mark.parametrize("gone", BEFORE)
def test_what_is_gone_must_be_named_in_the_newest_section(gone: str) -> None:
    now = [one for one in BEFORE if one != gone]
    named = f"## 1.1\n\n`{name_of(gone)}` is gone.\n\n## 1.0\n"
    earlier = f"## 1.1\n\nNothing.\n\n## 1.0\n\n`{name_of(gone)}`\n"
    assert unannounced(BEFORE, now, named) == []
    assert unannounced(BEFORE, now, earlier) == [gone]


def test_another_default_is_a_change_and_a_new_name_is_none() -> None:
    now = ["fedfw.solve(problem, *, tol=0.2)", "fedfw.solve_all(problem)", *BEFORE[1:]]
    assert unannounced(BEFORE, now, "## 1.1\n") == BEFORE[:1]


def test_names_that_may_change_are_not_promised() -> None:
    listed = promised()
    assert not [one for one in listed if "._" in one or "contrib" in one or "fedmuon" in one]
    for one in ("fedfw.PenalisedFW.local_update(", "fedfw.Record.loss", "fedfw run --rounds VALUE"):
        assert [line for line in listed if line.startswith(one)], one
    assert "key of a run: local-steps" in listed


def test_breaking_and_changelog_begin_with_this_version() -> None:
    newest = SECTION.split(BREAKING.read_text(encoding="utf-8"))[1]
    number = __version__.partition(".dev")[0].rpartition(".")[0]
    if "dev" in __version__:
        assert newest.startswith(f"{number} (unreleased)\n")
    else:
        assert released_version() == __version__
    assert f"fedfw {released_version()}," in FILE.read_text(encoding="utf-8").splitlines()[0]
    entry = SECTION.split(CHANGELOG.read_text(encoding="utf-8"))[1]
    assert entry.startswith(f"{__version__}\n")


def test_a_run_folder_of_version_1_0_loads() -> None:
    run = fedfw.load_run(KEPT)
    assert [record.round for record in run.history] == [1, 2, 3]
    assert run.history[-1].loss == 2.2480863332748413
    assert run.lower_bound == 2.129110794924687
    assert sorted(tuple(one.shape) for one in run.parameters.values()) == [(10,), (10, 64)]
    config = read_config(KEPT / "config.toml")
    assert (config.dataset, config.clients, config.rounds) == ("digits", 2, 3)
    assert isinstance(build_algorithm(config), fedfw.FedFW)
