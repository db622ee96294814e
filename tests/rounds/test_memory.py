"""What a server keeps of its clients gives the same bits, and rounds may be open side by side."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.algorithms import State
from fedfw.deployment import DeployedServer, Deployment
from fedfw.problems.oracles import Cohort, PlainOracles
from fedfw.rounds.client_steps import WatchedOracles, split, take_part
from fedfw.rounds.memory import EveryRow, TouchedRows
from fedfw.rounds.options import Options
from fedfw.rounds.round import Round
from fedfw.rounds.sums import Upload
from fedfw.simulation import Simulation
from fedfw_reproduction.known_quadratics import Quadratics
from tests.deployment.loopback import Loopback, problem_of, small_task
from tests.table import zero_layer

pytestmark = pytest.mark.usefixtures("no_plots")
N, FEATURES, CLASSES = 60, 8, 3
PATTERNS = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))


def make(who: Tensor) -> tuple[Tensor, Tensor]:
    targets = (who[:, None] + torch.arange(5)) % CLASSES
    return PATTERNS[targets] + 0.1 * torch.sin(who[:, None, None] + torch.arange(FEATURES)), targets


def layer() -> nn.Linear:
    return zero_layer(FEATURES, CLASSES)


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
        assert record.consensus == (
            None if wanted.consensus is None else pytest.approx(wanted.consensus)
        )
        assert (record.bytes_up, record.bytes_down) == (wanted.bytes_up, wanted.bytes_down)


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"participation": 4}])
def test_clients_that_are_made_are_those_that_are_stored(options: dict[str, Any]) -> None:
    made = fedfw.Problem.generated(layer(), nnf.cross_entropy, N, make)
    algorithm = ALGORITHMS["l1"]
    one, other = (
        fedfw.simulate(problem, algorithm, rounds=5, **options).x for problem in (made, stored())
    )
    assert torch.equal(one, other)
    network = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    inputs, targets = make(torch.arange(N))
    kept = fedfw.Problem(network, nnf.cross_entropy, list(zip(inputs, targets, strict=True)))
    made = fedfw.Problem.generated(network, nnf.cross_entropy, N, make)
    algorithm = replace(algorithm, momentum=0.0, schedule="convex")
    one, other = (
        fedfw.simulate(problem, algorithm, rounds=3, **options).x for problem in (made, kept)
    )
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


# --- Servers that keep the coordinates that were touched ---

SPARSE = {
    "FedFW": fedfw.FedFW("l1:3", penalty=0.1),
    "FedFW+": fedfw.FedFWPlus("l1:3", penalty=0.1),
    "FedFW+, product": fedfw.FedFWPlus(
        fedfw.Product({"weight": fedfw.L1Ball(3.0), "bias": fedfw.KSparse(2, 1.0)}), penalty=0.1
    ),
    "FedFW-sto": fedfw.FedFWSto("ksparse:3,1", penalty=0.1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("participation", "local_steps"), [(1.0, 1), (0.6, 2)])
@pytest.mark.parametrize("name", SPARSE)
def test_few_columns_are_all_columns(
    name: str, participation: float, local_steps: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Models, messages, memories and bounds, of a server that is restarted on the way."""
    options = {"rounds": 4, "local_steps": local_steps, "participation": participation}
    task = small_task(SPARSE[name], 9, 200, dtype, **options)
    settings = Deployment(tell_loss=True, out=tmp_path / "server")
    loop = Loopback(DeployedServer(task, settings), tmp_path)
    simulation = Simulation(problem_of(task), SPARSE[name], Options(**options))
    run = simulation.run()
    for simulated in run.history:
        record = loop.round()
        memory = loop.server.coordinator.memory
        assert 0 < len(memory.columns) < len(run.x)
        assert (record.bytes_up, record.bytes_down) == (simulated.bytes_up, simulated.bytes_down)
        if simulated.round == 2:
            loop.server = DeployedServer(task, replace(settings, resume=True))
    assert torch.equal(loop.server.xbar, run.x)
    for key, values in memory.gather(torch.arange(9)).items():
        assert torch.equal(values, simulation.clients[key]), key
    spread = memory.spread(loop.server.xbar) ** 0.5
    assert spread == pytest.approx(run.history[-1].consensus)


# --- Rounds side by side: each has clients of its own, and the mean stays the model ---

EVERYONE = torch.arange(8)
ORACLES = {
    "fedfw": fedfw.FedFW("l2:1", penalty=0.05),
    "fedfw, momentum": fedfw.FedFW("l2:1", penalty=0.05, momentum=0.9),
    "fedfw+": fedfw.FedFWPlus("l2:1", penalty=0.05),
    "fedfw-sto": fedfw.FedFWSto("l2:1", penalty=0.05),
}


def begin(simulation: Simulation, t: int, who: Tensor) -> tuple[Round, State]:
    """Return a round that can be closed, and what its clients hold then."""
    coordinator, problem = simulation.coordinator, simulation.problem
    now = coordinator.open(t, [who])
    message = coordinator.announce(now)
    coordinator.number(now)
    oracles = PlainOracles(problem.losses, 1, None, 0, None)
    cohort = Cohort(who, problem.weights[who], who, simulation.constraint)
    pair = oracles.pair(cohort, t, message.oracle_tol)
    before = split(coordinator.memory.gather(who), coordinator.shared_names)
    after, sending = take_part(
        simulation.method,
        now.exchange,
        coordinator.run,
        before,
        message,
        WatchedOracles(*pair, len(who), problem.n),
    )
    flat = after.flat()
    now.arrive(Upload(who, before.client.shared, sending.sent, sending.decoded, flat))
    return now, flat


@pytest.mark.parametrize("closing", [(0, 1), (1, 0)])
@pytest.mark.parametrize("name", ORACLES)
def test_rounds_that_are_open_at_the_same_time_both_count(
    name: str, closing: tuple[int, int]
) -> None:
    simulation = Simulation(Quadratics.on("l2").problem, ORACLES[name], Options(rounds=9))
    coordinator = simulation.coordinator
    coordinator.close(begin(simulation, 1, EVERYONE)[0])
    groups = [torch.tensor([0, 1, 2]), torch.tensor([4, 5, 6, 7])]
    opened = [begin(simulation, 2 + i, who) for i, who in enumerate(groups)]
    before = coordinator.memory.gather(EVERYONE)["x"].clone()
    for number in closing:
        coordinator.close(opened[number][0])
        points = coordinator.memory.gather(EVERYONE)["x"]
        assert torch.allclose(points.mean(0), coordinator.server.xbar, atol=1e-12)
    assert torch.equal(points[3], before[3])
    for who, (_, after) in zip(groups, opened, strict=True):
        assert not bool((points[who] == before[who]).all(1).any())
        assert torch.equal(points[who], after["x"])
    if "ybar" in coordinator.server.state:
        y = coordinator.memory.gather(EVERYONE)["y"]
        assert torch.allclose(y.mean(0), coordinator.server.state["ybar"], atol=1e-12)
    coordinator.close(begin(simulation, 4, EVERYONE)[0])
