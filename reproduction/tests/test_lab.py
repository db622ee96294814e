"""The lab: every task once, kept by its content, the same with one process or two."""

import io
import os
import signal
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.processes import start_python

from fedfw.data import MissingDataError
from fedfw_reproduction import lab
from fedfw_reproduction.kept import FILE
from fedfw_reproduction.lab import NOT_YET, Json, Lab, Results, Site, was_run
from fedfw_reproduction.schema import Identity, identity

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


def test_a_second_call_computes_only_what_is_missing(tmp_path: Path) -> None:
    first = Lab(tmp_path).run([Square(2), Square(3), Square(2)])
    assert computed == [2, 3]
    again = Lab(tmp_path).run([Square(3), Square(4)])
    assert computed == [2, 3, 4]
    assert again[Square(3)] == first[Square(3)]
    assert first[Square(2)]["machine"] == Site().machine


def test_an_interrupted_call_keeps_what_was_done(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Lab(tmp_path).run([Square(5), Square(13), Square(6)])
    assert len((tmp_path / FILE).read_text().splitlines()) == 1
    assert Lab(tmp_path).run([Square(5)])[Square(5)]["square"] == 25
    assert computed == [5, 13]


@pytest.fixture
def _quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers, which get their tasks pickled as fresh interpreters do."""
    monkeypatch.setattr(lab, "get_context", lambda method: get_context("fork"))


@pytest.mark.usefixtures("_quick_workers")
def test_two_processes_give_the_same(tmp_path: Path) -> None:
    tasks = [Square(n) for n in range(4)]
    alone, both = Lab(tmp_path / "1").run(tasks), Lab(tmp_path / "2", jobs=2).run(tasks)
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


def test_progress_says_what_runs() -> None:
    stream = io.StringIO()
    tasks = [Square(n) for n in range(3)]
    progress = lab._Progress(tasks, kept=2, stream=stream)
    for task in tasks[:2]:
        progress.started(task)
        progress.finished(task)
    progress.close()
    said = stream.getvalue()
    assert "2 of 5 tasks are kept from before" in said
    assert "1/3 square of 0" in said
    assert "2/3 square of 1" in said


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
