"""Progress: lines that say where the run is, on a terminal and in a file."""

from __future__ import annotations

import io

import pytest

import fedfw
from fedfw.simulation.callbacks import Progress
from fedfw.testing.known_quadratics import Quadratics

pytestmark = pytest.mark.usefixtures("no_plots")

Q = Quadratics.on("l1")
ALGORITHM = fedfw.FedFW(Q.constraint, penalty=0.05)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_the_last_state_is_shown(kind: type[io.StringIO]) -> None:
    stream = kind()
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=7, callbacks=Progress(stream))
    last = stream.getvalue().replace("\r", "\n").strip().splitlines()[-1]
    assert "round 7/7" in last
    assert f"loss {run.history[-1].loss:.4f}" in last
    assert f"gap {run.history[-1].gap:.2e}" in last
    assert f"optimum >= {run.lower_bound:.4f}" in last
    assert "up" in last


def test_a_run_that_ends_early_shows_where() -> None:
    stream = io.StringIO()
    fedfw.simulate(Q.problem, ALGORITHM, rounds=7, callbacks=[lambda s: s.t == 3, Progress(stream)])
    assert "round 3/7" in stream.getvalue().strip().splitlines()[-1]


def test_a_resumed_run_counts_on(tmp_path) -> None:  # type: ignore[no-untyped-def]
    fedfw.simulate(Q.problem, ALGORITHM, rounds=3, out=tmp_path)
    stream = io.StringIO()
    fedfw.simulate(Q.problem, ALGORITHM, rounds=5, out=tmp_path, resume=True, callbacks=Progress(stream))
    assert "round 5/5" in stream.getvalue().strip().splitlines()[-1]
    nothing = io.StringIO()
    fedfw.simulate(Q.problem, ALGORITHM, rounds=5, out=tmp_path, resume=True, callbacks=Progress(nothing))
    assert nothing.getvalue() == ""  # there was no round left


def test_by_default_it_goes_to_the_error_stream(capsys: pytest.CaptureFixture[str]) -> None:
    fedfw.simulate(Q.problem, ALGORITHM, rounds=2, callbacks=Progress())
    told = capsys.readouterr()
    assert told.out == ""
    assert "round 2/2" in told.err


def test_progress_is_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[fedfw.Record] = []
    seen: list[int] = []
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=3, progress=told.append, callbacks=lambda s: seen.append(s.t))
    assert told == list(run.history)
    assert seen == [1, 2, 3]
    assert len(fedfw.simulate(Q.problem, ALGORITHM, rounds=3, progress=lambda record: True).history) == 3
    assert capsys.readouterr().err == ""
    fedfw.simulate(Q.problem, ALGORITHM, rounds=3, progress=True)
    assert "round 3/3" in capsys.readouterr().err
    with pytest.raises(TypeError, match="progress='yes', expected True, False or a function"):
        fedfw.simulate(Q.problem, ALGORITHM, rounds=3, progress="yes")  # type: ignore[arg-type]
