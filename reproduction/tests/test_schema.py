"""Keys of kept results: they depend on what was computed, not on names of classes and fields in the
code.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import fedfw_reproduction
from fedfw.algorithms.registry import ALGORITHMS
from fedfw.config import RunConfig, all_options
from fedfw_reproduction import schema
from fedfw_reproduction.bounds import StudyTask
from fedfw_reproduction.cells import Cell, Central
from fedfw_reproduction.counterexample import Path as Counterexample
from fedfw_reproduction.frontier.courses import Task as Courses
from fedfw_reproduction.kept import FILE, KeptResults
from fedfw_reproduction.networks.trainings import Training
from fedfw_reproduction.schema import Identity, configuration, identity, key
from fedfw_reproduction.study import Effort

RESULTS = Path(fedfw_reproduction.__file__).parents[1] / "results"
CONFIG = RunConfig.of(
    dataset="mnist", clients=10, algorithm="fedavg", constraint="l1:10", lr="auto:2", rounds=7
)
FROZEN = [
    "7324c4f3cfdb82e62d58",
    "1a84d183f2ecda4f3deb",
    "d31d78d11a7a85d526e7",
    "a77b63f3c4b031322228",
    "b529f3965798330dc384",
    "5a3668ecee806b2f962a",
]


@dataclass(frozen=True)
class Before:
    """A task as it is written today."""

    samples: int
    config: RunConfig

    def identity(self) -> Identity:
        return identity("run", configuration=configuration(self.config), samples=self.samples)


@dataclass(frozen=True)
class After:
    """The same task after its class and a field were renamed."""

    size: int
    run: RunConfig

    def identity(self) -> Identity:
        return identity("run", configuration=configuration(self.run), samples=self.size)


def test_a_renamed_class_and_field_have_the_same_key() -> None:
    assert key(Before(3, CONFIG).identity()) == key(After(size=3, run=CONFIG).identity())
    assert key(Before(3, CONFIG).identity()) != key(After(size=4, run=CONFIG).identity())


def test_a_renamed_option_and_algorithm_have_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = configuration(CONFIG)
    assert before["algorithm"]["name"] == "fedavg"
    monkeypatch.setitem(schema.OPTIONS, "lr", "learning_rate")
    monkeypatch.setitem(schema.ALGORITHMS, "fedavg", "federated-averaging")
    assert schema.options([("learning-rate", "auto:2")]) == {"lr": "auto:2"}
    assert schema.algorithm("federated-averaging") == before["algorithm"]
    with pytest.raises(ValueError, match="no frozen name"):
        schema.options([("lr", 1.0)])


def test_a_raised_revision_and_another_schema_give_other_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = key(Before(3, CONFIG).identity())
    monkeypatch.setitem(schema.REVISIONS, "fedavg", 17)
    assert key(Before(3, CONFIG).identity()) != first
    monkeypatch.setitem(schema.REVISIONS, "scaffold", 17)  # of another method: nothing changes
    second = key(Before(3, CONFIG).identity())
    monkeypatch.setattr(schema, "SCHEMA", 2)
    assert key(Before(3, CONFIG).identity()) not in (first, second)


def test_an_option_that_came_later_is_left_out_where_it_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(schema.NEUTRAL, "mu", 0.0)
    assert schema.options([("mu", 0.0), ("lr", 1.0)]) == {"lr": 1.0}
    assert schema.options([("mu", 0.5)]) == {"mu": 0.5}


def test_every_option_and_algorithm_has_one_frozen_name() -> None:
    assert sorted(schema.ALGORITHMS.values()) == sorted(ALGORITHMS)
    assert sorted([*schema.OPTIONS.values(), *schema.NOT_PART]) == sorted(all_options())
    assert set(schema.REVISIONS) <= set(schema.ALGORITHMS)
    assert set(schema.NEUTRAL) <= set(schema.OPTIONS)


def test_keys_of_today_are_those_of_the_day_on_which_they_were_frozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schema, "REVISIONS", {})
    monkeypatch.setattr(schema, "TASK_REVISIONS", {})
    described = [
        Cell(CONFIG, grid=(("lr", (0.1, 1.0)),), epoch=True).identity(),
        Central.of(Cell(CONFIG)).identity(),
        Courses(
            CONFIG, ((("lr", 0.5),), (("lr", "auto:1"), ("decay", "linear"))), (3, 7)
        ).identity(),
        Training(CONFIG, held_out=True, every=5).identity(),
        StudyTask("T1", Effort()).identity(),
        Counterexample("fedfw", 0.1, 100).identity(),
    ]
    assert [key(one) for one in described] == FROZEN


def test_the_seed_and_the_set_are_part_of_the_key_and_the_folder_of_the_data_is_not() -> None:
    here = replace(CONFIG, data_dir="elsewhere", device="cuda")
    assert configuration(here) == configuration(CONFIG)
    assert configuration(replace(CONFIG, seed=1)) != configuration(CONFIG)
    assert configuration(replace(CONFIG, mixed=True)) != configuration(CONFIG)
    assert configuration(replace(CONFIG, constraint="l1:11")) != configuration(CONFIG)
    with pytest.raises(ValueError, match="no frozen name"):
        configuration(replace(CONFIG, algorithm="unknown"))


@pytest.mark.parametrize("study", sorted(path.name for path in RESULTS.iterdir()))
def test_kept_results_are_sorted_and_stand_under_their_own_keys(study: str) -> None:
    lines = [json.loads(line) for line in (RESULTS / study / FILE).read_text().splitlines()]
    assert lines
    keys = [line["key"] for line in lines]
    assert keys == sorted(set(keys))
    assert keys == [key(line["computed"]) for line in lines]


def test_an_unfinished_line_is_dropped_and_what_follows_is_kept(tmp_path: Path) -> None:
    path = tmp_path / FILE
    kept = KeptResults(path)
    for number in (3, 1, 2):
        kept.add(identity("square", number=number), {"square": number**2})
    with open(path, "a") as file:
        file.write('{"key": "0123", "resu')
    again = KeptResults(path)
    assert len(again) == 3
    again.add(identity("square", number=4), {"square": 16})
    again.pack()
    lines = path.read_text().splitlines()
    assert lines == sorted(lines)
    assert len(lines) == 4
    assert KeptResults(path).get(identity("square", number=4)) == {"square": 16}
    assert KeptResults(path).get(identity("square", number=5)) is None


def test_results_that_another_process_appended_stay(tmp_path: Path) -> None:
    here, there = KeptResults(tmp_path / FILE), KeptResults(tmp_path / FILE)
    here.add(identity("square", number=1), {"square": 1})
    there.add(identity("square", number=2), {"square": 4})
    here.pack()
    assert len(KeptResults(tmp_path / FILE)) == 2


def test_a_damaged_line_is_refused_with_its_number(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"key": "0123", "computed": {}, "result": {}}\n{"other": 1}\n')
    with pytest.raises(ValueError, match="line 2 is no kept result"):
        KeptResults(tmp_path / FILE)
