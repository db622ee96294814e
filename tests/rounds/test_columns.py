"""A coordinator that keeps the coordinates that somebody touched gives the bits of one that keeps all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.algorithms.base import Algorithm, Evidence, Plan, State, Upload
from fedfw.atoms import Atom, mix
from fedfw.atoms.base import stack_atoms
from fedfw.certificates import LowerBound
from fedfw.rounds.columns import narrow_atoms, touched_by
from fedfw.rounds.coordinator import Coordinator
from fedfw.rounds.memory import EveryRow, TouchedColumns
from fedfw.rounds.wire import point_digest
from fedfw.schedules import convex, nonconvex

DTYPES = [torch.float32, torch.float64]
N, P = 40, 400
PRODUCT = fedfw.Product({"a": fedfw.L1Ball(3.0), "b": fedfw.KSparse(2, 1.0)}).bind({"a": (300,), "b": (100,)})
ALGORITHMS = {
    "FedFW": fedfw.FedFW(fedfw.L1Ball(3.0), penalty=0.1),
    "FedFW+": fedfw.FedFWPlus(fedfw.L1Ball(3.0), penalty=0.1),
    "FedFW+, product": fedfw.FedFWPlus(PRODUCT, penalty=0.1),
    "FedFW-sto": fedfw.FedFWSto(fedfw.KSparse(3, 1.0), penalty=0.1),
}


def plan_of(algorithm: Algorithm, local_steps: int, keeps_start: bool) -> Plan:
    schedule = nonconvex(1.0, 100) if keeps_start else convex()
    return Plan(N, algorithm.constraint, local_steps, lam_0=0.1, schedule=schedule, convex=True)


def start_of(dtype: torch.dtype, entries: int) -> Tensor:
    start = torch.zeros(P, dtype=dtype)
    start[:entries] = 0.3 / max(1, entries)
    return start


def coordinator_of(algorithm: Algorithm, plan: Plan, start: Tensor, few: bool) -> Coordinator:
    begun = algorithm.contract.rebuilt(algorithm.start_clients(start[None].clone()))
    memory = TouchedColumns(N, begun) if few else EveryRow({name: v.repeat(N, 1) for name, v in begun.items()})
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
        drawn = torch.rand(N, generator=self.generator)
        asked = (drawn < self.share).nonzero().flatten() if self.share < 1 else torch.arange(N)
        came = asked[torch.rand(len(asked), generator=self.generator) < 0.9] if self.share < 1 else asked
        numbers = torch.randn(len(came), generator=self.generator, dtype=torch.float64)
        return asked, came, self.sent(t, came), numbers


def take_round(coordinator: Coordinator, t: int, what: tuple[Tensor, Tensor, Atom, Tensor]) -> list[dict[str, bytes]]:
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
    assert few.memory.spread(few.server.xbar) == pytest.approx(every.memory.spread(every.server.xbar), rel=1e-12)
    one, other = few.bound.value(), every.bound.value()
    assert (one is None) == (other is None)
    assert one is None or one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_few_columns_are_all_columns(name: str, local_steps: int, share: float, dtype: torch.dtype) -> None:
    """Points, duals, the model, what goes down and the bound; clients come and go, and a checkpoint is loaded."""
    algorithm, start = ALGORITHMS[name], start_of(dtype, 30)
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
            newcomer = algorithm.contract.rebuilt(algorithm.start_clients(few.server.xbar[None].to(dtype)))
            for one in (few, every):
                one.leave(7)
                one.join(3, {key: value.clone() for key, value in newcomer.items()})
            assert_same(few, every)


def test_dense_atoms_and_many_coordinates_keep_all_columns() -> None:
    algorithm = fedfw.FedFW(fedfw.L2Ball(1.0), penalty=0.1)
    plan, start = plan_of(algorithm, 1, False), start_of(torch.float64, 3)
    few, every = (coordinator_of(algorithm, plan, start, few) for few in (True, False))
    course = Course(few.plan, torch.float64, 0.6)
    for t in (1, 2, 3):
        what = course.round(t)
        assert take_round(few, t, what) == take_round(every, t, what)
        assert_same(few, every)
    assert few.memory.columns is None
    memory = TouchedColumns(2, {"x": torch.ones(1, P)})
    assert memory.columns is None
    memory = TouchedColumns(2, {"x": torch.zeros(1, P)})
    memory.touch(torch.arange(P // 2 + 1))
    assert memory.columns is None
    assert memory.rows["x"].shape == (2, P)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["FedFW", "FedFW+, product", "FedFW-sto"])
def test_narrow_atoms_take_the_same_steps(name: str, dtype: torch.dtype) -> None:
    plan = plan_of(ALGORITHMS[name], 3, False)
    atoms = Course(plan, dtype, 1.0).sent(2, torch.arange(5))
    touched = touched_by(atoms)
    assert touched is not None
    columns = torch.unique(touched).flip(0)
    place = torch.full((P,), -1)
    place[columns] = torch.arange(len(columns))
    x = torch.zeros(5, P, dtype=torch.float64)
    x[:, columns] = torch.randn(5, len(columns), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    narrow = narrow_atoms(atoms, place, len(columns), torch.float64)
    expected = atoms.step(x.clone(), 0.3)
    assert torch.equal(narrow.step(x[:, columns].clone(), 0.3), expected[:, columns])
    expected[:, columns] = 0.0
    assert not expected.any()


def test_only_a_class_that_says_so_itself_is_coordinatewise() -> None:
    class Mine(fedfw.FedFW):
        """Somebody's own steps, which may look at whole vectors."""

    algorithm = fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1)
    assert algorithm.is_coordinatewise
    assert not Mine(fedfw.L1Ball(1.0), penalty=0.1).is_coordinatewise
    assert not fedfw.FedFWAnchored(fedfw.L1Ball(1.0)).is_coordinatewise  # an anchor's duals are dense
    assert replace(algorithm, penalty=0.2).is_coordinatewise


def test_a_bound_from_vectors_by_columns_is_the_bound_from_whole_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    few, whole = LowerBound(fedfw.L1Ball(2.0), 4, p=30), LowerBound(fedfw.L1Ball(2.0), 4)
    at = [torch.tensor([3, 9]), torch.tensor([3, 9, 4]), torch.tensor([21, 4]), None, torch.tensor([5])]
    rows = [torch.arange(4), torch.tensor([0, 2]), torch.tensor([1, 3]), torch.tensor([2]), torch.tensor([0, 1])]
    values: list[Any] = []
    for who, columns in zip(rows, at, strict=True):
        number = torch.randn(len(who), generator=generator, dtype=torch.float64)
        q = torch.zeros(len(who), 30, dtype=torch.float64)
        kept = torch.arange(30) if columns is None else columns
        q[:, kept] = torch.randn(len(who), len(kept), generator=generator, dtype=torch.float64)
        few.report(who, number, q if columns is None else q[:, columns], columns)
        whole.report(who, number, q)
        again = LowerBound(fedfw.L1Ball(2.0), 4, p=30)
        again.load(few.state())
        values.append(whole.value())
        assert few.value() == again.value() == (None if values[-1] is None else pytest.approx(values[-1], rel=1e-12))
    assert [value is None for value in values] == [False, True, False, False, False]


def test_points_by_columns_have_the_digest_of_whole_points() -> None:
    x = torch.zeros(50, dtype=torch.float64)
    x[[4, 30, 7]] = torch.tensor([1.0, -2.0, 1e-300], dtype=torch.float64)
    signed = x.clone()
    signed[9] = -0.0  # the same number
    columns = torch.tensor([30, 9, 4, 7])
    assert point_digest(x) == point_digest(signed) == point_digest(signed[columns], columns)
    moved = x.roll(1)
    changed = x.clone()
    changed[4] = torch.nextafter(changed[4], changed[4] + 1)
    assert len({point_digest(v) for v in (x, moved, changed, torch.zeros(50))}) == 4
