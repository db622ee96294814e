"""Many registered clients: what is kept of them gives the same bits, and costs what those who take part cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fedfw
from fedfw.rounds.folders import RunFolder
from fedfw.rounds.memory import ClientMemory, EveryRow, TouchedRows, load_memory
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw.simulation.callbacks import Checkpoints

pytestmark = pytest.mark.usefixtures("no_plots")
N, FEATURES, CLASSES = 60, 8, 3
PATTERNS = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))


def make(who: Tensor) -> tuple[Tensor, Tensor]:
    targets = (who[:, None] + torch.arange(5)) % CLASSES
    return PATTERNS[targets] + 0.1 * torch.sin(who[:, None, None] + torch.arange(FEATURES)), targets


def layer() -> nn.Linear:
    model = nn.Linear(FEATURES, CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def stored() -> fedfw.Problem:
    inputs, targets = make(torch.arange(N))
    return fedfw.Problem(layer(), nnf.cross_entropy, list(zip(inputs, targets, strict=True)))


ALGORITHMS = {
    "l1": fedfw.FedFW(fedfw.L1Ball(3.0), penalty=0.01),
    "l1, momentum": fedfw.FedFWPlus(fedfw.L1Ball(3.0), penalty=0.01, momentum=0.5),
    "l2": fedfw.FedFWPlus(fedfw.L2Ball(3.0), penalty=0.01),
    "nuclear": fedfw.FedFW(fedfw.NuclearBall(3.0), penalty=0.01),
}


# --- runs ---


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rows_that_were_touched_are_the_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(rounds=9, participation=3, eval_every=3)
    few = Simulation(stored(), ALGORITHMS[name], options)
    monkeypatch.setattr("fedfw.simulation.setup.few_take_part", lambda *of: False)
    every = Simulation(stored(), ALGORITHMS[name], options)
    assert isinstance(few.coordinator.memory, TouchedRows)
    assert isinstance(every.coordinator.memory, EveryRow)
    one, other = few.run(), every.run()
    assert torch.equal(one.x, other.x)
    for key, values in every.clients.items():
        assert torch.equal(few.clients[key], values)
    for record, wanted in zip(one.history, other.history, strict=True):
        assert record.loss == wanted.loss
        assert record.consensus == (None if wanted.consensus is None else pytest.approx(wanted.consensus))
        assert (record.bytes_up, record.bytes_down) == (wanted.bytes_up, wanted.bytes_down)


@pytest.mark.parametrize("name", ["l1", "l2"])
def test_an_interrupted_run_of_few_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    options, algorithm = Options(rounds=9, participation=3), ALGORITHMS[name]

    def stop(simulation: Simulation) -> None:
        if simulation.t == 6:
            raise KeyboardInterrupt

    often = Checkpoints(RunFolder(tmp_path), every=2)
    with pytest.raises(KeyboardInterrupt):
        Simulation(stored(), algorithm, options, callbacks=[stop, often]).run()
    resumed = Simulation(stored(), algorithm, options, folder=RunFolder(tmp_path, resume=True))
    assert resumed.t == 4
    assert torch.equal(resumed.run().x, Simulation(stored(), algorithm, options).run().x)


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"participation": 4}])
def test_clients_that_are_made_are_those_that_are_stored(options: dict[str, Any]) -> None:
    made = fedfw.Problem.generated(layer(), nnf.cross_entropy, N, make)
    algorithm = ALGORITHMS["l1"]
    one, other = (fedfw.simulate(problem, algorithm, rounds=5, **options).x for problem in (made, stored()))
    assert torch.equal(one, other)
    network = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    inputs, targets = make(torch.arange(N))
    kept = fedfw.Problem(network, nnf.cross_entropy, list(zip(inputs, targets, strict=True)))
    made = fedfw.Problem.generated(network, nnf.cross_entropy, N, make)
    algorithm = replace(algorithm, momentum=0.0, schedule="convex")
    one, other = (fedfw.simulate(problem, algorithm, rounds=3, **options).x for problem in (made, kept))
    assert torch.allclose(one, other, atol=1e-6)


def test_a_run_of_a_million_keeps_to_those_who_take_part() -> None:
    problem = fedfw.Problem.generated(layer(), nnf.cross_entropy, 1_000_000, make)
    simulation = Simulation(problem, ALGORITHMS["l1"], Options(rounds=3, participation=50))
    run = simulation.run()
    assert [record.participants for record in run.history] == [50, 50, 50]
    assert [record.loss for record in run.history] == [None] * 3
    memory = simulation.coordinator.memory
    assert memory.state()["x.values"].numel() <= 150 * 3
    mean = memory.gather(memory.state()["touched"])["x"].sum(0) / 1_000_000
    assert torch.allclose(mean.float(), run.x, atol=1e-9)
    with pytest.raises(ValueError, match="auto"):
        fedfw.simulate(problem, fedfw.FedFW(fedfw.L1Ball(3.0)), rounds=3, participation=50)


def test_more_rounds_than_planned_may_keep_rows_in_the_other_form(tmp_path: Path) -> None:
    algorithm = ALGORITHMS["l1"]
    fedfw.simulate(stored(), algorithm, rounds=4, participation=3, out=tmp_path)
    options = Options(rounds=30, participation=3)
    resumed = Simulation(stored(), algorithm, options, folder=RunFolder(tmp_path, resume=True))
    assert isinstance(resumed.coordinator.memory, TouchedRows)
    whole = Simulation(stored(), algorithm, options)
    assert isinstance(whole.coordinator.memory, EveryRow)
    assert torch.equal(resumed.run().x, whole.run().x)


# --- the memories themselves ---


def test_what_differs_from_the_start_is_kept() -> None:
    memory = TouchedRows(10, {"x": torch.zeros(1, 20), "seen": torch.zeros(1, 1, dtype=torch.bool)})
    sparse, full = torch.zeros(2, 20), torch.arange(40.0).reshape(2, 20) + 1
    sparse[0, 3], sparse[1, 19] = 2.0, -1.0
    seen = torch.ones(2, 1, dtype=torch.bool)
    memory.scatter(torch.tensor([7, 2]), {"x": sparse, "seen": seen})
    assert memory.state()["x.values"].tolist() == [2.0, -1.0]
    assert memory.state()["x.columns"].tolist() == [3, 19]
    memory.scatter(torch.tensor([2, 5]), {"x": full, "seen": seen})
    assert memory.state()["x.counts"].tolist() == [1, 20, 20]
    held = memory.gather(torch.tensor([0, 2, 5, 7]))
    assert torch.equal(held["x"], torch.stack([torch.zeros(20), full[0], full[1], sparse[0]]))
    assert held["seen"].flatten().tolist() == [False, True, True, True]


@st.composite
def courses(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 12))
    writes = st.lists(
        st.tuples(st.sets(st.integers(0, n - 1), min_size=1), st.sampled_from([0.02, 0.2, 1.0])), max_size=6
    )
    return {
        "n": n,
        "width": draw(st.sampled_from([3, 17, 40])),
        "start": draw(st.sampled_from([0.0, 1.5])),
        "dtype": draw(st.sampled_from([torch.float32, torch.float64])),
        "writes": draw(writes),
        "seed": draw(st.integers(0, 1000)),
        "stored": draw(st.integers(0, 6)),
    }


@given(courses())
def test_both_forms_hold_the_same_after_any_writing(course: dict[str, Any]) -> None:
    n, width, dtype = course["n"], course["width"], course["dtype"]
    generator = torch.Generator().manual_seed(course["seed"])
    start = {
        "x": torch.full((1, width), course["start"], dtype=dtype),
        "seen": torch.zeros(1, 1, dtype=torch.bool),
    }
    every = EveryRow({name: values.repeat(n, 1) for name, values in start.items()})
    few: ClientMemory = TouchedRows(n, start)
    for number, (rows, density) in enumerate(course["writes"]):
        who = torch.tensor(sorted(rows))[torch.randperm(len(rows), generator=generator)]
        values = torch.randn(len(who), width, generator=generator, dtype=torch.float64)
        kept = torch.rand(len(who), width, generator=generator) < density
        state = {"x": torch.where(kept, values, 0.0).to(dtype), "seen": torch.ones(len(who), 1, dtype=torch.bool)}
        every.scatter(who if len(who) < n else torch.arange(n), state if len(who) < n else _ordered(state, who))
        few.scatter(who, state)
        if number == course["stored"]:
            held = {name: value.clone() for name, value in few.state().items()}
            few = load_memory(TouchedRows(n, start), start, held)
        for some in (torch.arange(n), who, torch.tensor([0])):
            wanted = {name: values[some] for name, values in every.rows.items()}
            found = few.gather(some)
            assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        xbar = every.rows["x"].mean(0)
        assert few.spread(xbar) == pytest.approx(every.spread(xbar), rel=1e-4, abs=1e-9)


def _ordered(state: dict[str, Tensor], who: Tensor) -> dict[str, Tensor]:
    """A state whose rows stand in the order of the clients, as it is handed over for everyone."""
    return {name: values[who.argsort()] for name, values in state.items()}


@pytest.mark.parametrize("few", [True, False])
def test_a_memory_is_loaded_in_the_form_in_which_it_was_kept(few: bool) -> None:
    start = {"x": torch.zeros(1, 20)}
    touched, every = TouchedRows(5, start), EveryRow({"x": torch.zeros(5, 20)})
    kept = touched if few else every
    kept.scatter(torch.tensor([3]), {"x": torch.ones(1, 20)})
    loaded = load_memory(every if few else touched, start, dict(kept.state()))
    assert type(loaded) is type(kept)
    assert torch.equal(loaded.gather(torch.arange(5))["x"], kept.gather(torch.arange(5))["x"])


def test_clients_come_and_go() -> None:
    memory = EveryRow({"x": torch.arange(6.0).reshape(3, 2)})
    memory.insert(1, {"x": torch.full((1, 2), 9.0)})
    assert memory.n == 4
    assert memory.rows["x"][:, 0].tolist() == [0, 9, 2, 4]
    memory.remove(0)
    assert memory.n == 3
    assert memory.rows["x"][:, 0].tolist() == [9, 2, 4]


def test_rows_kept_by_their_entries_are_equal_numbers() -> None:
    """The sign of a zero is all that may be lost."""
    memory = TouchedRows(4, {"x": torch.zeros(1, 20)})
    row = torch.zeros(1, 20)
    row[0, 3], row[0, 4] = -0.0, 1.0
    memory.scatter(torch.tensor([1]), {"x": row})
    assert torch.equal(memory.gather(torch.tensor([1]))["x"], row)
