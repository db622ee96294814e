"""Many registered clients: what is kept of them gives the same bits, and costs what those who take
part cost.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.algorithms import Algorithm, Evidence, Plan, State, Upload
from fedfw.atoms import Atom, mix
from fedfw.atoms.base import stack_atoms
from fedfw.rounds.coordinator import Coordinator
from fedfw.rounds.memory import EveryRow, TouchedColumns, TouchedRows
from fedfw.rounds.options import Options
from fedfw.rounds.wire import point_digest
from fedfw.schedules import convex, nonconvex
from fedfw.simulation import Simulation
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


# --- the memories themselves ---


# --- A coordinator that keeps the coordinates that somebody touched gives the bits of one that
# keeps all of them ---

DTYPES = [torch.float32, torch.float64]
COLUMNS_N, P = 40, 400
PRODUCT = fedfw.Product({"a": fedfw.L1Ball(3.0), "b": fedfw.KSparse(2, 1.0)}).bind(
    {"a": (300,), "b": (100,)}
)
COLUMNS_ALGORITHMS = {
    "FedFW": fedfw.FedFW(fedfw.L1Ball(3.0), penalty=0.1),
    "FedFW+": fedfw.FedFWPlus(fedfw.L1Ball(3.0), penalty=0.1),
    "FedFW+, product": fedfw.FedFWPlus(PRODUCT, penalty=0.1),
    "FedFW-sto": fedfw.FedFWSto(fedfw.KSparse(3, 1.0), penalty=0.1),
}


def plan_of(algorithm: Algorithm, local_steps: int, keeps_start: bool) -> Plan:
    schedule = nonconvex(1.0, 100) if keeps_start else convex()
    return Plan(
        COLUMNS_N, algorithm.constraint, local_steps, lam_0=0.1, schedule=schedule, convex=True
    )


def start_of(dtype: torch.dtype, entries: int) -> Tensor:
    start = torch.zeros(P, dtype=dtype)
    start[:entries] = 0.3 / max(1, entries)
    return start


def coordinator_of(algorithm: Algorithm, plan: Plan, start: Tensor, few: bool) -> Coordinator:
    begun = algorithm.contract.rebuilt(algorithm.start_clients(start[None].clone()))
    memory = (
        TouchedColumns(COLUMNS_N, begun)
        if few
        else EveryRow({name: v.repeat(COLUMNS_N, 1) for name, v in begun.items()})
    )
    return Coordinator(algorithm, plan, start, memory, convex=True)


@dataclass
class Course:
    """What clients do in a run, by a seed."""

    plan: Plan
    dtype: torch.dtype
    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def sent(self, t: int, who: Tensor) -> Atom:
        """Atoms at few coordinates, each client's net of its local steps."""
        n, k = len(who), self.plan.local_steps
        at = torch.randint(P, (n * k, 4), generator=self.generator) % (25 + 3 * t)
        at = (at * 7) % P
        g = torch.zeros(n * k, P, dtype=self.dtype)
        g.scatter_(1, at, torch.randn(at.shape, generator=self.generator, dtype=self.dtype))
        steps = self.plan.constraint.lmo(g, batch=True)
        weights = self.plan.mixing(t)[1]
        return stack_atoms([mix([steps[i * k + j] for j in range(k)], weights) for i in range(n)])

    def round(self, t: int) -> tuple[Tensor, Tensor, Atom, Tensor]:
        """Who is asked, who answers, what, and the certificate's numbers."""
        drawn = torch.rand(COLUMNS_N, generator=self.generator)
        asked = (
            (drawn < self.share).nonzero().flatten() if self.share < 1 else torch.arange(COLUMNS_N)
        )
        came = (
            asked[torch.rand(len(asked), generator=self.generator) < 0.9]
            if self.share < 1
            else asked
        )
        numbers = torch.randn(len(came), generator=self.generator, dtype=torch.float64)
        return asked, came, self.sent(t, came), numbers


def take_round(
    coordinator: Coordinator, t: int, what: tuple[Tensor, Tensor, Atom, Tensor]
) -> list[dict[str, bytes]]:
    asked, came, atoms, numbers = what
    now = coordinator.open(t, [asked])
    coordinator.announce(now)
    coordinator.number(now)
    written = [coordinator.wire.write(base) for base in sorted(set(now.bases.tolist()))]
    points, columns = coordinator.points(came), coordinator.memory.columns
    now.arrive(Upload(came, atoms, points, Evidence(numbers, None), columns))
    coordinator.close(now)
    return written


def assert_same(few: Coordinator, every: Coordinator) -> None:
    everyone = torch.arange(every.memory.n)
    assert torch.equal(few.server.xbar, every.server.xbar)
    assert few.server.vectors.keys() == every.server.vectors.keys()
    for name, vector in every.server.vectors.items():
        assert torch.equal(few.server.vectors[name], vector), name
    held: State = few.memory.gather(everyone)
    for name, values in every.memory.gather(everyone).items():
        assert torch.equal(held[name], values), name
    columns = few.memory.columns
    for row in (0, every.memory.n - 1):
        ours = point_digest(few.points(torch.tensor([row]))[0], columns)
        assert ours == point_digest(every.points(torch.tensor([row]))[0])
    assert few.memory.spread(few.server.xbar) == pytest.approx(
        every.memory.spread(every.server.xbar), rel=1e-12
    )
    one, other = few.bound.value(), every.bound.value()
    assert (one is None) == (other is None)
    assert one is None or one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("name", COLUMNS_ALGORITHMS)
def test_few_columns_are_all_columns(
    name: str, local_steps: int, share: float, dtype: torch.dtype
) -> None:
    """Points, duals, the model, what goes down and the bound; clients come and go, and a checkpoint
    is loaded.
    """
    algorithm, start = COLUMNS_ALGORITHMS[name], start_of(dtype, 30)
    plan = plan_of(algorithm, local_steps, keeps_start=share < 1)
    few, every = (coordinator_of(algorithm, plan, start, few) for few in (True, False))
    course = Course(plan, dtype, share)
    for t in range(1, 9):
        what = course.round(t)
        assert take_round(few, t, what) == take_round(every, t, what)
        assert_same(few, every)
        assert few.memory.columns is not None
        if t == 3:
            held = {key: value.clone() for key, value in few.state().items()}
            few = coordinator_of(algorithm, plan, start, few=True)
            few.load(held)
        if t == 5:
            newcomer = algorithm.contract.rebuilt(
                algorithm.start_clients(few.server.xbar[None].to(dtype))
            )
            for one in (few, every):
                one.leave(7)
                one.join(3, {key: value.clone() for key, value in newcomer.items()})
            assert_same(few, every)
