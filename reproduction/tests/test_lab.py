"""The lab: every task once, kept by its content, the same with one process or two."""

import json
import os
import signal
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.processes import start_python

import fedfw_reproduction
from fedfw.algorithms.registry import ALGORITHMS
from fedfw.config import RunConfig, all_options
from fedfw.data import MissingDataError
from fedfw_reproduction import lab, schema
from fedfw_reproduction.bounds import StudyTask
from fedfw_reproduction.cells import Cell, Central
from fedfw_reproduction.counterexample import Path as Counterexample
from fedfw_reproduction.frontier.courses import Task as Courses
from fedfw_reproduction.kept import FILE, KeptResults
from fedfw_reproduction.lab import NOT_YET, Json, Lab, Results, Site, was_run
from fedfw_reproduction.networks.trainings import Training
from fedfw_reproduction.schema import Identity, configuration, identity, key
from fedfw_reproduction.study import Effort

computed: list[int] = []


@dataclass(frozen=True)
class Square:
    number: int

    @property
    def title(self) -> str:
        return f"square of {self.number}"

    @property
    def weight(self) -> float:
        return 1.0

    def identity(self) -> Identity:
        return identity("square", number=self.number)

    def compute(self, site: Site) -> Json:
        computed.append(self.number)
        if self.number < 0:
            raise MissingDataError(f"no file for {self.number}")
        if self.number == 13:
            raise KeyboardInterrupt
        return {"square": self.number**2}


@dataclass(frozen=True)
class Next:
    """The square of the smallest square among others, plus one."""

    numbers: tuple[int, ...]
    title: str = "next"
    weight: float = 1.0

    @property
    def needs(self) -> tuple[Square, ...]:
        return tuple(Square(number) for number in self.numbers)

    def settled(self, results: Results) -> Square:
        return Square(min(results[task]["square"] for task in self.needs) + 1)


@pytest.fixture(autouse=True)
def _forget() -> None:
    computed.clear()


def test_a_call_computes_only_what_an_earlier_or_interrupted_one_did_not(tmp_path: Path) -> None:
    first = Lab(tmp_path).run([Square(2), Square(3), Square(2)])
    again = Lab(tmp_path).run([Square(3), Square(4)])
    assert computed == [2, 3, 4]
    assert again[Square(3)] == first[Square(3)]
    assert first[Square(2)]["machine"] == Site().machine
    with pytest.raises(KeyboardInterrupt):
        Lab(tmp_path).run([Square(5), Square(13), Square(6)])
    assert Lab(tmp_path).run([Square(5)])[Square(5)]["square"] == 25
    assert computed == [2, 3, 4, 5, 13]


@pytest.fixture
def _quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers, which get their tasks pickled as fresh interpreters do."""
    monkeypatch.setattr(lab, "get_context", lambda method: get_context("fork"))


@pytest.mark.usefixtures("_quick_workers")
def test_two_processes_give_the_same(tmp_path: Path) -> None:
    tasks = [Square(n) for n in range(4)]
    alone = Lab(tmp_path / "1").run(tasks)
    both = Lab(tmp_path / "2", jobs=2).run(tasks)
    assert [both[task]["square"] for task in tasks] == [alone[task]["square"] for task in tasks]
    assert computed == [0, 1, 2, 3]  # the other four elsewhere


@pytest.mark.usefixtures("_quick_workers")
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_depends_on_other_results_comes_after_them_and_is_kept_as_what_it_became(
    tmp_path: Path, jobs: int
) -> None:
    wanted = [Next((3, 2)), Next((4,)), Square(7)]
    results = Lab(tmp_path, jobs=jobs).run(wanted)
    assert [results[one]["square"] for one in wanted] == [25, 17**2, 49]
    assert results[Square(3)]["square"] == 9  # what was needed is among the results
    computed.clear()
    assert Lab(tmp_path).run([*wanted, Square(5)]) == {**results, Square(5): results[wanted[0]]}
    assert Lab(tmp_path, only_kept=True).run([Next((2, 3))])[Next((2, 3))]["square"] == 25
    assert not computed
    assert Lab(tmp_path, only_kept=True).run([Next((1,))])[Next((1,))]["not_run"] == NOT_YET


@pytest.mark.parametrize("jobs", [1, 2])
def test_nothing_begins_after_the_time_is_up(tmp_path: Path, jobs: int) -> None:
    Lab(tmp_path).run([Square(2)])
    computed.clear()
    results = Lab(tmp_path, jobs=jobs, seconds=0.0).run([Square(2), Square(3), Square(4)])
    assert results[Square(2)]["square"] == 4
    assert [results[Square(n)]["not_run"] for n in (3, 4)] == [NOT_YET, NOT_YET]
    assert not computed


def test_missing_data_are_told_and_asked_for_again(tmp_path: Path) -> None:
    result = Lab(tmp_path).run([Square(-1)])[Square(-1)]
    assert not was_run(result)
    assert "no file for -1" in result["why"]
    Lab(tmp_path).run([Square(-1)])
    assert computed == [-1, -1]


@dataclass(frozen=True)
class CtrlC:
    """Interrupts everybody, as a terminal does when both keys are pressed, and then waits to be
    ended.
    """

    number: int
    title: str = "Ctrl-C"
    weight: float = 1.0

    def identity(self) -> Identity:
        return identity("interrupt", number=self.number)

    def compute(self, site: Site) -> Json:
        os.killpg(os.getpgrp(), signal.SIGINT)
        signal.pause()
        return {}


def test_workers_say_nothing_when_they_are_interrupted(tmp_path: Path) -> None:
    script = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from fedfw_reproduction.lab import Lab\n"
        "from test_lab import CtrlC\n"
        "if __name__ == '__main__':\n"
        "    os.setsid()\n"  # else the processes that run the tests would be interrupted
        # A shell that starts the tests in the background has it ignored.
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    try:\n"
        f"        Lab(Path({str(tmp_path)!r}), jobs=2).run([CtrlC(1), CtrlC(2)])\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    (tmp_path / "script.py").write_text(script)
    done = start_python([tmp_path / "script.py"]).wait(120)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")
    assert "Traceback" not in done.stderr


# --- Keys of kept results: they depend on what was computed, not on names of classes and fields
# in the code ---

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
    keys = [key(configuration(CONFIG))]
    monkeypatch.setitem(schema.REVISIONS, "fedavg", 17)
    monkeypatch.setitem(schema.REVISIONS, "scaffold", 17)  # of another method: nothing changes
    keys.append(key(configuration(CONFIG)))
    monkeypatch.setattr(schema, "SCHEMA", 2)
    keys.append(key(configuration(CONFIG)))
    assert len(set(keys)) == 3


def test_an_option_that_came_later_is_left_out_where_it_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(schema.NEUTRAL, "mu", 0.0)
    assert schema.options([("mu", 0.0), ("lr", 1.0)]) == {"lr": 1.0}
    assert schema.options([("mu", 0.5)]) == {"mu": 0.5}


def test_every_option_and_algorithm_has_one_frozen_name() -> None:
    assert sorted([*schema.ALGORITHMS.values(), *schema.ONCE_OPTIONS]) == sorted(ALGORITHMS)
    assert {name for name, _ in schema.ONCE_OPTIONS.values()} <= set(schema.ALGORITHMS)
    assert sorted([*schema.OPTIONS.values(), *schema.NOT_PART]) == sorted(all_options())
    assert set(schema.REVISIONS) <= set(schema.ALGORITHMS)
    assert set(schema.NEUTRAL) <= set(schema.OPTIONS)


def test_an_algorithm_that_was_an_option_keeps_its_key() -> None:
    config = RunConfig.of(
        dataset="digits", clients=3, partition="iid", constraint="l2:1", algorithm="fedlmo-server"
    )
    described = configuration(config)
    assert described["algorithm"] == configuration(config.having(algorithm="fedlmo"))["algorithm"]
    assert described["options"]["oracle_at"] == "server"


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


def test_a_file_survives_killed_and_other_processes_and_refuses_damage(tmp_path: Path) -> None:
    path = tmp_path / FILE
    here = KeptResults(path)
    there = KeptResults(path)  # another process, which reads before the first result is there
    for number in (3, 1, 2):
        here.add(identity("square", number=number), {"square": number**2})
    with open(path, "a") as file:
        file.write('{"key": "0123", "resu')  # a process was killed here
    there.add(identity("square", number=4), {"square": 16})
    there.pack()
    lines = path.read_text().splitlines()
    assert lines == sorted(lines)
    again = KeptResults(path)
    assert len(again) == len(lines) == 4
    assert again.get(identity("square", number=3)) == {"square": 9}
    assert again.get(identity("square", number=5)) is None
    path.write_text(lines[0] + '\n{"other": 1}\n')
    with pytest.raises(ValueError, match="line 2 is no kept result"):
        KeptResults(path)
