"""Callbacks: what they see, and how they end a run that is kept."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

import fedfw
from fedfw import Privacy, StopRun
from fedfw.rounds.folders import RunFolder
from fedfw.rounds.options import Options
from fedfw.rounds.records import History
from fedfw.simulation import Callback, Run, Simulation
from fedfw.simulation.callbacks import Budget, Progress
from fedfw_reproduction.known_quadratics import SETS, Quadratics
from tests.table import zero_layer

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
    run = fedfw.simulate(
        Q.problem, ALGORITHM, rounds=5, callbacks=ending("after_round", at, raises)
    )
    assert isinstance(run, Run)
    assert len(run.history) == at
    assert run.stopped == "enough"
    assert torch.equal(run.x, whole[at - 1])
    assert run.history[-1].loss == pytest.approx(Q.value(run.x))
    assert f"rounds: {at} (" in repr(run)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mood", r"Own.record gives \['mood'\]"),
        ("round", "fills in itself"),
        ("bytes_up", "fills in itself"),
    ],
)
def test_a_record_has_its_own_fields_and_nobody_rewrites_what_was_counted(
    name: str, message: str
) -> None:
    class Own(Callback):
        def record(self, simulation: Simulation) -> Mapping[str, Any]:
            return {name: 7}

    with pytest.raises(TypeError, match=message):
        fedfw.simulate(Q.problem, ALGORITHM, rounds=2, callbacks=Own())


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
    run = fedfw.simulate(
        Q.problem, fedfw.FedFWAnchored(Q.constraint, anchor_every=2), rounds=2, callbacks=diary
    )
    assert diary.pages == [
        ("before", 0, 0),
        ("record", 1, 0),
        ("after", 1, 1),
        ("before", 1, 1),
        ("record", 2, 1),
        ("after", 2, 2),
        ("finish", 2, 2),
    ]
    assert [r.epsilon for r in run.history] == [0.5, 1.0]


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
    fedfw.simulate(
        Q.problem, ALGORITHM, rounds=13, callbacks=counters[1], out=tmp_path, resume=True
    )
    assert [counter.count for counter in counters] == [10, 13]
    # One that was not there before begins anew, and one that is gone is not missed.
    late = Diary()
    fedfw.simulate(Q.problem, ALGORITHM, rounds=14, callbacks=late, out=tmp_path, resume=True)
    assert [page[1] for page in late.pages if page[0] == "after"] == [14]


# --- The privacy budget: every client's rounds are counted, and nobody spends more than was
# promised ---

DELTA = 1e-5
BUDGET_ALGORITHM = fedfw.FedFW(fedfw.L1Ball(3.0))


def problem() -> fedfw.Problem:
    pytest.importorskip("dp_accounting")
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.rand(40, 6, generator=generator), torch.randint(0, 3, (40,), generator=generator))
        for _ in range(3)
    ]
    model = zero_layer(6, 3)
    return fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0])


def budget(simulation: Simulation) -> Budget:
    return next(callback for callback in simulation.hooks.callbacks if isinstance(callback, Budget))


def test_a_run_ends_before_its_budget_does() -> None:
    run = fedfw.simulate(
        problem(),
        BUDGET_ALGORITHM,
        rounds=50,
        privacy=Privacy(1.0, DELTA, noise=20.0),
        participation=0.5,
        eval_every=10,
    )
    assert run.stopped == "the privacy budget is spent"
    assert 0 < len(run.history) < 50
    assert run.history[-1].epsilon <= 1.0
    assert (
        run.history[-1].accuracy is not None
    )  # the last round is evaluated, though not by its number
    with pytest.raises(ValueError, match="one round would spend"):
        fedfw.simulate(
            problem(), BUDGET_ALGORITHM, rounds=5, privacy=Privacy(0.1, DELTA, noise=1.0)
        )


def test_every_clients_rounds_are_counted() -> None:
    options = Options(rounds=6, participation=2, privacy=Privacy(2.0, DELTA, not_private_seed=0))
    simulation = Simulation(problem(), BUDGET_ALGORITHM, options)
    simulation.run()
    counted = torch.zeros(3, dtype=torch.int64)
    for t in range(1, 7):
        counted[simulation.participation(t)] += 1
    assert budget(simulation).state()["attended"].tolist() == counted.tolist()
    assert simulation.privacy.most_rounds == int(counted.max())
    assert simulation.history[-1].epsilon == pytest.approx(
        simulation.privacy.epsilon(int(counted.max()))
    )


def test_a_resumed_run_remembers_what_was_spent(tmp_path: Path) -> None:
    options = Options(rounds=6, participation=2, privacy=Privacy(2.0, DELTA, not_private_seed=0))

    def stop(simulation: Simulation) -> None:
        if simulation.t == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Simulation(
            problem(), BUDGET_ALGORITHM, options, folder=RunFolder(tmp_path), callbacks=stop
        ).run()
    resumed = Simulation(
        problem(), BUDGET_ALGORITHM, options, folder=RunFolder(tmp_path, resume=True)
    )
    assert resumed.t == 3  # a private run keeps every round
    assert int(budget(resumed).state()["attended"].sum()) == 6
    whole = Simulation(problem(), BUDGET_ALGORITHM, options).run()
    assert [r.epsilon for r in resumed.run().history] == [r.epsilon for r in whole.history]
    assert torch.equal(resumed.xbar, whole.x)


# --- The run folder is brought up to date as the run goes, and gets model and plots at its end ---


def rounds_kept(folder: Path) -> list[int]:
    return sorted(
        int(path.stem.partition("-")[2]) for path in folder.glob("checkpoint-*.safetensors")
    )


def test_a_checkpoint_every_ten_rounds_and_at_the_end(tmp_path: Path) -> None:
    seen: list[list[int]] = []
    run = fedfw.simulate(
        Q.problem,
        ALGORITHM,
        rounds=23,
        out=tmp_path,
        callbacks=lambda s: seen.append(rounds_kept(tmp_path)),
    )
    # A callback of the user comes before the checkpoint of its round.
    assert seen == [[]] * 10 + [[10]] * 10 + [[10, 20]] * 3
    assert rounds_kept(tmp_path) == [20, 23]
    assert run.out == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock",
        "checkpoint-00000020.safetensors",
        "checkpoint-00000023.safetensors",
        "history.jsonl",
        "model.pt",
        "plots.png",
        "run.json",
    }
    model = torch.load(tmp_path / "model.pt", weights_only=True)
    assert torch.equal(model["x"], run.x)
    assert (
        History.from_jsonl((tmp_path / "history.jsonl").read_text()).to_dict()
        == run.history.to_dict()
    )


# --- A run ends when it has proven that it is good enough, and not before ---


@pytest.mark.parametrize("name", ["fedfw", "fedfw+", "frank-wolfe", "fedavg"])
def test_the_run_goes_on_until_the_bound_is_within_the_tolerance(name: str) -> None:
    q = Quadratics.on("box")
    algorithm = fedfw.ALGORITHMS[name](
        q.constraint, **({"penalty": q.best_penalty} if "fedfw" in name else {})
    )
    seen = []

    def watch(simulation: Simulation) -> None:
        loss, bound = simulation.history[-1].loss, simulation.best_bound
        seen.append(loss - bound)

    tol = 0.3 if name == "fedfw" else 0.1
    run = fedfw.simulate(q.problem, algorithm, rounds=3000, tol=tol, callbacks=watch)
    assert run.stopped == f"within tol={tol:g} of the optimum"
    assert seen[-1] <= tol < min(seen[:-1])
    assert q.value(run.x) - q.least <= tol


# --- What a record says of the model is what an independent look at it says ---


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("algorithm", ["fedfw", "fedfw-anchored", "frank-wolfe", "fedavg"])
def test_loss_gap_consensus_and_bound(name: str, algorithm: str) -> None:
    q = Quadratics.on(name)

    def watch(simulation: Simulation) -> None:
        record, xbar = simulation.history[-1], simulation.xbar
        gradient = q.gradients(xbar).sum(0)
        s = q.constraint.lmo(gradient).dense(torch.float64)
        assert record.loss == pytest.approx(q.value(xbar))
        assert record.gap == pytest.approx(float((gradient * (xbar - s)).sum()), rel=1e-5, abs=1e-6)
        assert record.lower_bound >= record.loss - record.gap - 1e-9
        assert record.lower_bound <= q.least + 1e-9
        assert record.distance == 0.0
        if fedfw.algorithms.has_points(simulation.algorithm):
            apart = float((simulation.clients["x"] - xbar).square().sum() ** 0.5)
            assert record.consensus == pytest.approx(apart, abs=1e-9)
        else:
            assert record.consensus is None
            assert record.surrogate is None

    fedfw.simulate(
        q.problem,
        fedfw.ALGORITHMS[algorithm](q.constraint),
        rounds=6,
        participation=0.6,
        callbacks=watch,
    )


# --- Progress: lines that say where the run is, on a terminal and in a file ---


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


def test_progress_is_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[fedfw.Record] = []
    run = fedfw.simulate(Q.problem, ALGORITHM, rounds=3, progress=told.append)
    assert told == list(run.history)
    again = fedfw.simulate(Q.problem, ALGORITHM, rounds=3, progress=lambda record: True)
    assert len(again.history) == 3
    assert capsys.readouterr().err == ""
    fedfw.simulate(Q.problem, ALGORITHM, rounds=3, progress=True)
    assert "round 3/3" in capsys.readouterr().err
    with pytest.raises(TypeError, match="progress='yes', expected True, False or a function"):
        fedfw.simulate(Q.problem, ALGORITHM, rounds=3, progress="yes")  # type: ignore[arg-type]
