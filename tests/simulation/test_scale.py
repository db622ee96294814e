"""Many registered clients: what is kept of them gives the same bits, and costs what those who take part cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.simulation import Options
from fedfw.simulation import engine as engine_module
from fedfw.simulation.engine import Simulation
from fedfw.simulation.memory import EveryRow, TouchedRows
from fedfw.simulation.participation import Participation
from fedfw.simulation.storage import RunFolder

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


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rows_that_were_touched_are_the_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(rounds=9, participation=3, eval_every=3)
    few = Simulation(stored(), ALGORITHMS[name], options)
    monkeypatch.setattr(engine_module, "few_take_part", lambda *of: False)
    every = Simulation(stored(), ALGORITHMS[name], options)
    assert isinstance(few.memory, TouchedRows)
    assert isinstance(every.memory, EveryRow)
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

    with pytest.raises(KeyboardInterrupt):
        Simulation(stored(), algorithm, options, RunFolder(tmp_path, checkpoint_every=2)).run([stop])
    resumed = Simulation(stored(), algorithm, options, RunFolder(tmp_path, resume=True))
    assert resumed.t == 4
    assert torch.equal(resumed.run().x, Simulation(stored(), algorithm, options).run().x)


def test_sparse_rows_become_dense_when_that_is_smaller() -> None:
    memory = TouchedRows(10, {"x": torch.zeros(1, 20), "seen": torch.zeros(1, 1, dtype=torch.bool)})
    sparse, full = torch.zeros(2, 20), torch.arange(40.0).reshape(2, 20) + 1
    sparse[0, 3], sparse[1, 19] = 2.0, -1.0
    seen = torch.ones(2, 1, dtype=torch.bool)
    memory.scatter(torch.tensor([7, 2]), {"x": sparse, "seen": seen})
    assert memory.tensors()["x.columns"].shape[1] == 1
    memory.scatter(torch.tensor([2, 5]), {"x": full, "seen": seen})
    assert memory.tensors()["x.columns"].shape[1] == 0
    held = memory.gather(torch.tensor([0, 2, 5, 7]))
    assert torch.equal(held["x"], torch.stack([torch.zeros(20), full[0], full[1], sparse[0]]))
    assert held["seen"].flatten().tolist() == [False, True, True, True]


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"participation": 4}])
def test_clients_that_are_made_are_those_that_are_stored(options: dict[str, Any]) -> None:
    made = fedfw.Problem.generated(layer(), nnf.cross_entropy, N, make)
    algorithm = ALGORITHMS["l1"]
    assert torch.equal(
        fedfw.simulate(made, algorithm, 5, **options).x, fedfw.simulate(stored(), algorithm, 5, **options).x
    )
    network = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    inputs, targets = make(torch.arange(N))
    kept = fedfw.Problem(network, nnf.cross_entropy, list(zip(inputs, targets, strict=True)))
    made = fedfw.Problem.generated(network, nnf.cross_entropy, N, make)
    runs = [fedfw.simulate(problem, algorithm, 3, **options).x for problem in (made, kept)]
    assert torch.allclose(*runs, atol=1e-6)


def test_a_run_of_a_million_keeps_to_those_who_take_part() -> None:
    problem = fedfw.Problem.generated(layer(), nnf.cross_entropy, 1_000_000, make)
    simulation = Simulation(problem, ALGORITHMS["l1"], Options(rounds=3, participation=50))
    run = simulation.run()
    assert [record.participants for record in run.history] == [50, 50, 50]
    assert [record.loss for record in run.history] == [None] * 3
    assert simulation.memory.tensors()["x.values"].numel() <= 150 * 3
    touched = simulation.memory.tensors()["touched"]
    mean = simulation.memory.gather(touched)["x"].sum(0) / 1_000_000
    assert torch.allclose(mean, run.x, atol=1e-9)
    with pytest.raises(ValueError, match="auto"):
        fedfw.simulate(problem, fedfw.FedFW(fedfw.L1Ball(3.0)), 3, participation=50)


def test_draws_from_many_are_fair_and_repeat() -> None:
    n = 200_000
    for wanted in (1000, 0.005):
        draw = Participation(wanted, n, seed=3)
        rounds = [draw(t) for t in range(1, 21)]
        assert all(torch.equal(who, who.unique()) for who in rounds)
        assert torch.equal(draw(7), rounds[6])
        everyone = torch.cat(rounds).double()
        assert abs(float(everyone.mean()) / n - 0.5) < 0.01
        assert 18_000 < len(everyone) < 22_000


def test_more_rounds_than_planned_may_keep_rows_in_the_other_form(tmp_path: Path) -> None:
    algorithm = ALGORITHMS["l1"]
    fedfw.simulate(stored(), algorithm, 4, participation=3, out=tmp_path)
    resumed = Simulation(stored(), algorithm, Options(rounds=30, participation=3), RunFolder(tmp_path, resume=True))
    assert isinstance(resumed.memory, TouchedRows)
    whole = Simulation(stored(), algorithm, Options(rounds=30, participation=3))
    assert isinstance(whole.memory, EveryRow)
    assert torch.equal(resumed.run().x, whole.run().x)
