"""Flower's quickstart, changed by a few lines, ends where `fedfw.simulate` does."""

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg

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


def test_the_difference_is_fifteen_lines_and_stands_in_the_page() -> None:
    done = subprocess.run(
        [sys.executable, QUICKSTART / "difference.py"], capture_output=True, text=True, check=True
    )
    difference, _, count = done.stdout.rstrip().rpartition("\n\n")
    assert count == "12 lines added, 3 removed: 15 changed lines"
    assert "+    strategy = fedfw.flower.FrankWolfeStrategy(" in difference
    page = (QUICKSTART.parents[1] / "docs" / "howto" / "flower.md").read_text()
    assert f"```diff\n{difference}\n```" in page


def script(name: str) -> dict[str, Any]:
    """Return what a script beside the apps defines."""
    return runpy.run_path(str(QUICKSTART / name))


def test_the_unchanged_app_trains_with_lmo_steps_in_the_client(monkeypatch: Any) -> None:
    with imported(QUICKSTART / "before"):
        from quickstart import client_app, task

        monkeypatch.setattr(client_app, "train_fn", script("lmo_client.py")["train"])
        grid = make_grid(client_app.app, CLIENTS)
        grid.run_config = {"local-epochs": 1}
        start = task.Net()
        result = FedAvg().start(
            grid, ArrayRecord(start.state_dict()), 3, train_config=ConfigRecord({"lr": 0.05})
        )
    weights = result.arrays.to_torch_state_dict()
    assert fedfw.L2Ball(10.0).contains(torch.cat([w.reshape(-1) for w in weights.values()]))
    assert result.evaluate_metrics_clientapp[3]["eval_acc"] > 0.7


def test_the_mean_of_the_unchanged_app_is_projected(monkeypatch: Any) -> None:
    strategy = script("projected_mean.py")["ProjectedFedAvg"]
    with imported(QUICKSTART / "before"):
        from quickstart import client_app, task

        grid = make_grid(client_app.app, CLIENTS)
        grid.run_config = {"local-epochs": 1}
        start = task.Net()
        result = strategy("l1:30", start).start(
            grid, ArrayRecord(start.state_dict()), 3, train_config=ConfigRecord({"lr": 0.5})
        )
    weights = result.arrays.to_torch_state_dict()
    assert fedfw.L1Ball(30.0).contains(torch.cat([w.reshape(-1) for w in weights.values()]))
    assert result.evaluate_metrics_clientapp[3]["eval_acc"] > 0.7
