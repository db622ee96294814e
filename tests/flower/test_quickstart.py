"""Flower's quickstart, changed by a few lines, ends where `fedfw.simulate` does."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict

import fedfw
from fedfw.flower import FrankWolfeResult, FrankWolfeStrategy
from tests.flower.grid import QUICKSTART, imported, make_grid, simulated

ROUNDS = 10
CLIENTS = 3


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The changed app's modules."""
    monkeypatch.chdir(tmp_path)
    with imported(QUICKSTART / "after"):
        from quickstart import client_app, server_app, task

        yield client_app, server_app, task


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[FrankWolfeResult]:
    """What strategies return, which the app keeps to itself."""
    found: list[FrankWolfeResult] = []
    start = FrankWolfeStrategy.start

    def watched(*arguments: Any, **more: Any) -> FrankWolfeResult:
        found.append(start(*arguments, **more))
        return found[-1]

    monkeypatch.setattr(FrankWolfeStrategy, "start", watched)
    return found


def test_the_changed_app_ends_where_simulate_does(
    app: Any, results: list[FrankWolfeResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    client_app, server_app, task = app
    torch.manual_seed(0)
    start = task.Net()
    monkeypatch.setattr(server_app, "Net", lambda: start)
    grid = make_grid(client_app.app, CLIENTS)
    context = Context(1, 1, {}, RecordDict(), {"num-server-rounds": ROUNDS, "lr": 0.1})
    server_app.app(grid, context)
    clients = [task.load_data(k, CLIENTS)[0].dataset for k in range(CLIENTS)]
    run = simulated(start, clients, fedfw.FedFWPlus("ksparse:k=65,r=1", momentum=0.9), ROUNDS)
    saved = torch.load("final_model.pt", weights_only=True)
    expected = run.model.state_dict()
    assert all(torch.equal(saved[name], expected[name]) for name in expected)
    (result,) = results
    # Clients evaluate alone and in float32, the simulation all together: sums round differently.
    assert result.loss == pytest.approx(run.history[-2].loss, rel=1e-6)
    assert result.lower_bound == 0.0  # the loss's floor: with momentum clients prove no more
    assert result.traffic.payload_up == run.history.total("bytes_up")
    assert result.traffic.payload_down == run.history.total("bytes_down")
    assert result.traffic.transport_up > result.traffic.payload_up + result.traffic.checks_up
    accuracy = result.evaluate_metrics_clientapp[ROUNDS]["eval_acc"]
    assert accuracy > 0.5
    assert "transport" in repr(result)


def test_the_difference_is_fifteen_lines() -> None:
    done = subprocess.run(
        [sys.executable, QUICKSTART / "difference.py"], capture_output=True, text=True, check=True
    )
    assert "12 lines added, 3 removed: 15 changed lines" in done.stdout
    assert "+    strategy = fedfw.flower.FrankWolfeStrategy(" in done.stdout
