"""The privacy budget: every client's rounds are counted, and nobody spends more than was promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import fedfw
from fedfw import Privacy
from fedfw.rounds.folders import RunFolder
from fedfw.rounds.options import Options
from fedfw.simulation import Simulation
from fedfw.simulation.callbacks import Budget

pytest.importorskip("dp_accounting")
DELTA = 1e-5
pytestmark = pytest.mark.usefixtures("no_plots")
ALGORITHM = fedfw.FedFW(fedfw.L1Ball(3.0))


def problem() -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.rand(40, 6, generator=generator), torch.randint(0, 3, (40,), generator=generator)) for _ in range(3)
    ]
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0])


def budget(simulation: Simulation) -> Budget:
    return next(callback for callback in simulation.callbacks if isinstance(callback, Budget))


def test_a_run_ends_before_its_budget_does() -> None:
    run = fedfw.simulate(
        problem(), ALGORITHM, rounds=50, privacy=Privacy(1.0, DELTA, noise=20.0), participation=0.5, eval_every=10
    )
    assert run.stopped == "the privacy budget is spent"
    assert 0 < len(run.history) < 50
    assert run.history[-1].epsilon is not None
    assert run.history[-1].epsilon <= 1.0
    assert run.history[-1].accuracy is not None  # the last round is evaluated, though not by its number
    with pytest.raises(ValueError, match="one round would spend"):
        fedfw.simulate(problem(), ALGORITHM, rounds=5, privacy=Privacy(0.1, DELTA, noise=1.0))


def test_every_clients_rounds_are_counted() -> None:
    options = Options(rounds=6, participation=2, privacy=Privacy(2.0, DELTA, not_private_seed=0))
    simulation = Simulation(problem(), ALGORITHM, options)
    simulation.run()
    counted = torch.zeros(3, dtype=torch.int64)
    for t in range(1, 7):
        counted[simulation.participation(t)] += 1
    assert budget(simulation).state()["attended"].tolist() == counted.tolist()
    assert simulation.privacy is not None
    assert simulation.privacy.most_rounds == int(counted.max())
    assert simulation.history[-1].epsilon == pytest.approx(simulation.privacy.epsilon(int(counted.max())))


def test_a_resumed_run_remembers_what_was_spent(tmp_path: Path) -> None:
    options = Options(rounds=6, participation=2, privacy=Privacy(2.0, DELTA, not_private_seed=0))

    def stop(simulation: Simulation) -> None:
        if simulation.t == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Simulation(problem(), ALGORITHM, options, folder=RunFolder(tmp_path), callbacks=stop).run()
    resumed = Simulation(problem(), ALGORITHM, options, folder=RunFolder(tmp_path, resume=True))
    assert resumed.t == 3  # a private run keeps every round
    assert int(budget(resumed).state()["attended"].sum()) == 6
    whole = Simulation(problem(), ALGORITHM, options).run()
    assert [r.epsilon for r in resumed.run().history] == [r.epsilon for r in whole.history]
    assert torch.equal(resumed.xbar, whole.x)


@pytest.mark.parametrize("changed", [{"rounds": 7}, {"privacy": Privacy(3.0, DELTA, not_private_seed=0)}])
def test_another_promise_is_another_run(changed: dict[str, Any], tmp_path: Path) -> None:
    """More rounds would mean more noise in each: the releases so far were planned otherwise."""
    options: dict[str, Any] = {"rounds": 4, "privacy": Privacy(2.0, DELTA, not_private_seed=0)}
    fedfw.simulate(problem(), ALGORITHM, out=tmp_path, **options)
    with pytest.raises(ValueError, match="holds another run"):
        fedfw.simulate(problem(), ALGORITHM, out=tmp_path, resume=True, **(options | changed))


def test_a_run_without_a_promise_has_no_budget() -> None:
    simulation = Simulation(problem(), ALGORITHM, Options(rounds=1))
    assert not any(isinstance(callback, Budget) for callback in simulation.callbacks)
    assert simulation.run().history[-1].epsilon is None
