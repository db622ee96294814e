"""Callbacks: what they see, and how they end a run that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedfw
from fedfw import Callback, StopRun
from fedfw.simulation import Run, Simulation
from fedfw.testing.known_quadratics import Quadratics

pytestmark = pytest.mark.usefixtures("no_plots")

Q = Quadratics.on("l1")
ALGORITHM = fedfw.FedFWPlus(Q.constraint, penalty=0.05)


def ending(hook: str, at: int, raises: bool, reason: str = "enough") -> Callback:
    """A callback that ends a run in one of the ways and at one of the places that there are."""

    def end(self: Callback, simulation: Simulation) -> bool:
        if simulation.t == at and raises:
            raise StopRun(reason)
        return simulation.t == at

    made: Callback = type("Ending", (Callback,), {hook: end, "reason": reason})()
    return made


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("at", [1, 3])
def test_a_run_ends_after_the_round_and_is_kept(at: int, raises: bool) -> None:
    whole: list[Tensor] = []
    fedfw.simulate(Q.problem, ALGORITHM, rounds=5, callbacks=lambda s: whole.append(s.xbar))
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=5, callbacks=ending("after_round", at, raises))
    assert isinstance(run, Run)
    assert len(run.history) == at
    assert run.stopped == "enough"
    assert torch.equal(run.x, whole[at - 1])
    assert run.history[-1].loss == pytest.approx(Q.value(run.x))
    assert f"{at} rounds" in repr(run)


@pytest.mark.parametrize("raises", [False, True])
def test_a_run_ends_before_a_round(raises: bool) -> None:
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=5, callbacks=[ending("before_round", 3, raises)])
    assert [r.round for r in run.history] == [1, 2, 3]
    assert run.stopped == "enough"
    nothing = fedfw.simulate(Q.problem, ALGORITHM, rounds=5, callbacks=ending("before_round", 0, raises))
    assert len(nothing.history) == 0
    assert torch.equal(nothing.x, Q.start)


def test_a_run_without_a_round_can_be_shown() -> None:
    assert "0 rounds" in repr(
        fedfw.simulate(Q.problem, ALGORITHM, rounds=5, callbacks=ending("before_round", 0, False))
    )


@pytest.mark.parametrize("raises", [False, True])
def test_a_run_ends_at_its_gathered_sum(raises: bool) -> None:
    anchored = fedfw.FedFWAnchored(Q.constraint, anchor_every=3)
    run = fedfw.simulate(Q.problem, anchored, rounds=9, callbacks=ending("after_gather", 4, raises))
    assert len(run.history) == 4
    assert run.stopped == "enough"
    assert run.history[-1].loss == pytest.approx(Q.value(run.x))  # nobody took another step
    assert run.history[-1].eta is None
    assert run.history[-1].gap == run.history[-1].anchor_gap is not None
    assert run.history[-1].bytes_up > 0


def test_a_run_that_ends_at_a_sum_of_some_does_not_take_it_for_the_loss() -> None:
    anchored = fedfw.FedFWAnchored(Q.constraint, anchor_every=3)
    end = ending("after_gather", 4, False)
    run = fedfw.simulate(Q.problem, anchored, rounds=9, participation=lambda t: [0, 1, 2], callbacks=end)
    assert len(run.history) == 4
    assert run.history[-1].loss in (None, pytest.approx(Q.value(run.x)))


def test_a_run_ends_from_a_record() -> None:
    class Full(Callback):
        def record(self, simulation: Simulation) -> Mapping[str, Any]:
            raise StopRun("enough")

    assert fedfw.simulate(Q.problem, ALGORITHM, rounds=5, callbacks=Full()).stopped == "enough"


@pytest.mark.parametrize(
    ("name", "message"),
    [("mood", r"Own.record gives \['mood'\]"), ("round", "fills in itself"), ("bytes_up", "fills in itself")],
)
def test_a_record_has_its_own_fields_and_nobody_rewrites_what_was_counted(name: str, message: str) -> None:
    class Own(Callback):
        def record(self, simulation: Simulation) -> Mapping[str, Any]:
            return {name: 7}

    with pytest.raises(TypeError, match=message):
        fedfw.simulate(Q.problem, ALGORITHM, rounds=2, callbacks=Own())


@pytest.mark.parametrize("result", [1, "yes", [True], np.bool_(True), torch.tensor(True), object(), False, None])
def test_only_true_ends_a_run(result: object) -> None:
    """A function may return anything, a logger's result for example."""
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=3, callbacks=lambda simulation: result)
    assert len(run.history) == 3
    assert run.stopped == "all that were asked for"


def test_a_plain_function_ends_a_run_by_returning_true() -> None:
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=9, callbacks=lambda simulation: simulation.t == 4)
    assert len(run.history) == 4
    assert run.stopped == "a callback ended it"
    assert fedfw.simulate(Q.problem, ALGORITHM, rounds=9, callbacks=lambda s: True).history[-1].round == 1


def test_stop_run_in_the_very_first_round(tmp_path: Path) -> None:
    def stop(simulation: Simulation) -> None:
        raise StopRun

    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=9, callbacks=stop, out=tmp_path)
    assert len(run.history) == 1
    assert run.stopped == "a callback ended it"
    assert (tmp_path / "checkpoint-00000001.safetensors").exists()
    assert (tmp_path / "model.pt").exists()


@pytest.mark.parametrize("at", [1, 4, 10])
def test_a_run_that_was_ended_can_be_resumed_to_the_same_bits(at: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 14, "participation": 0.6, "seed": 2}
    whole = fedfw.simulate(Q.problem, ALGORITHM, **options)

    def stop(simulation: Simulation) -> None:
        if simulation.t == at:
            raise StopRun("for today")

    first = fedfw.simulate(Q.problem, ALGORITHM, callbacks=stop, out=tmp_path, **options)
    assert (len(first.history), first.stopped) == (at, "for today")
    resumed = fedfw.simulate(Q.problem, ALGORITHM, callbacks=stop, out=tmp_path, resume=True, **options)
    assert torch.equal(resumed.x, whole.x)
    assert resumed.stopped == "all that were asked for"
    assert [r.bytes_down for r in resumed.history] == [r.bytes_down for r in whole.history]


def test_errors_of_a_callback_are_not_swallowed() -> None:
    def broken(simulation: Simulation) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fedfw.simulate(Q.problem, ALGORITHM, rounds=3, callbacks=broken)


class Diary(Callback):
    """Writes down what was called when."""

    def __init__(self) -> None:
        self.pages: list[tuple[str, int, int]] = []

    def _note(self, what: str, simulation: Simulation) -> None:
        self.pages.append((what, simulation.t, len(simulation.history)))

    def before_round(self, simulation: Simulation) -> None:
        self._note("before", simulation)

    def after_gather(self, simulation: Simulation) -> None:
        self._note("gathered", simulation)

    def record(self, simulation: Simulation) -> Mapping[str, Any]:
        self._note("record", simulation)
        return {"epsilon": 0.5 * simulation.t}

    def after_round(self, simulation: Simulation) -> None:
        self._note("after", simulation)

    def finish(self, simulation: Simulation, run: Run) -> None:
        assert run.history is simulation.history
        self._note("finish", simulation)


def test_methods_are_called_in_their_order_and_fill_in_the_record() -> None:
    diary = Diary()
    run = fedfw.simulate(Q.problem, fedfw.FedFWAnchored(Q.constraint, anchor_every=2), rounds=2, callbacks=diary)
    assert diary.pages == [
        ("before", 0, 0),
        ("gathered", 1, 0),
        ("record", 1, 0),
        ("after", 1, 1),
        ("before", 1, 1),
        ("record", 2, 1),
        ("after", 2, 2),
        ("finish", 2, 2),
    ]
    assert [r.epsilon for r in run.history] == [0.5, 1.0]


def test_all_callbacks_are_called_though_one_ends_the_run() -> None:
    diary, seen = Diary(), []
    first, second = ending("after_round", 2, True), ending("after_round", 2, False, "another reason")
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=5, callbacks=[first, second, diary, seen.append])
    assert run.stopped == "enough"  # the first one's reason
    assert [page for page in diary.pages if page[0] == "after"] == [("after", 1, 1), ("after", 2, 2)]
    assert len(seen) == 2


def test_what_callbacks_keep_of_the_model_stays() -> None:
    kept: list[Tensor] = []
    fedfw.simulate(Q.problem, ALGORITHM, rounds=4, participation=0.5, callbacks=lambda s: kept.append(s.xbar))
    assert len({model.numpy().tobytes() for model in kept}) > 1


class Counter(Callback):
    """Counts rounds, also those before a checkpoint."""

    def __init__(self, by: int = 1) -> None:
        self.by, self.count = by, 0

    def after_round(self, simulation: Simulation) -> None:
        self.count += self.by

    def state(self) -> dict[str, Tensor]:
        return {"count": torch.tensor([self.count])}

    def load(self, held: dict[str, Tensor]) -> None:
        self.count = int(held["count"])


def test_a_callback_goes_on_from_its_own_state(tmp_path: Path) -> None:
    counters = [Counter(), Counter()]
    fedfw.simulate(Q.problem, ALGORITHM, rounds=10, callbacks=counters[0], out=tmp_path)
    fedfw.simulate(Q.problem, ALGORITHM, rounds=13, callbacks=counters[1], out=tmp_path, resume=True)
    assert [counter.count for counter in counters] == [10, 13]
    # One that was not there before begins anew, and one that is gone is not missed.
    late = Diary()
    fedfw.simulate(Q.problem, ALGORITHM, rounds=14, callbacks=late, out=tmp_path, resume=True)
    assert [page[1] for page in late.pages if page[0] == "after"] == [14]


def test_two_callbacks_of_one_class_keep_their_own_states(tmp_path: Path) -> None:
    fedfw.simulate(Q.problem, ALGORITHM, rounds=10, callbacks=[Counter(1), Counter(100)], out=tmp_path)
    again = [Counter(1), Counter(100)]
    fedfw.simulate(Q.problem, ALGORITHM, rounds=12, callbacks=again, out=tmp_path, resume=True)
    assert [counter.count for counter in again] == [12, 1200]
