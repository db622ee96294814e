"""One round from the server's side: arrivals one by one, clients that do not come, rounds side by side, checkpoints."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.algorithms.base import (
    Algorithm,
    Evidence,
    GathersSums,
    Kept,
    Message,
    Plan,
    State,
    Up,
    Upload,
)
from fedfw.algorithms.parcels import parcel_readers
from fedfw.algorithms.steps import step_server, upload_of
from fedfw.atoms.base import read_framed, stack_atoms
from fedfw.atoms.bits import Reader
from fedfw.problems.oracles import Cohort, PlainOracles
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.checkpoints import load_checkpoint, save_checkpoint
from fedfw.rounds.coordinator import Coordinator, Round
from fedfw.rounds.memory import EveryRow
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Participation
from fedfw.rounds.wire import decoded
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import P, Quadratics

DTYPES = [torch.float32, torch.float64]
N = 8


@dataclass
class Federation:
    """A coordinator and its clients, who hold nothing but their memory and the bytes that they were sent."""

    problem: fedfw.Problem
    coordinator: Coordinator
    clients: list[State]
    held: list[dict[str, Tensor]]
    """What each client was sent last, decoded."""

    @classmethod
    def of(
        cls, algorithm: Algorithm, dtype: torch.dtype = torch.float64, set_: str = "l2", **options: Any
    ) -> Federation:
        q = Quadratics.on(set_)
        problem = quadratic_problem(q.A.to(dtype), q.c.to(dtype), q.start.to(dtype))
        blueprint = Simulation(problem, algorithm, Options(**options))
        resolved, plan, start = blueprint.algorithm, blueprint.plan, problem.start
        rebuilt = resolved.contract.rebuilt(resolved.start_clients(start.repeat(N, 1)))
        coordinator = Coordinator(resolved, plan, start, EveryRow(rebuilt), convex=True)
        clients = [resolved.start_clients(start[None].clone()) for _ in range(N)]
        return cls(problem, coordinator, clients, [{} for _ in range(N)])

    @property
    def algorithm(self) -> Algorithm:
        return self.coordinator.algorithm

    @property
    def plan(self) -> Plan:
        return self.coordinator.plan

    @property
    def xbar(self) -> Tensor:
        return self.coordinator.server.xbar

    @property
    def points(self) -> Tensor:
        """The server's copies of the clients' points."""
        return self.coordinator.memory.gather(torch.arange(N))["x"]

    def oracles(self, who: Tensor, t: int) -> Any:
        plain = PlainOracles(self.problem.losses, self.plan.local_steps, None, 0, None)
        weights = self.problem.weights.to(self.problem.start.dtype)[who]
        tol = None if self.plan.schedule is None else self.plan.oracle_tol(t)
        return plain.pair(Cohort(who, weights, who, self.plan.constraint), t, tol)

    def received(self, now: Round, i: int, base: int) -> dict[str, Tensor]:
        """What client i reads from the bytes of the last message."""
        zero, data = torch.zeros_like(self.xbar), self.coordinator.wire.write(base)
        now.traffic.bytes_down += sum(map(len, data.values()))
        self.held[i] = {name: decoded(one, self.held[i].get(name, zero)) for name, one in data.items()}
        return dict(self.held[i])

    def arrived(self, data: bytes, t: int) -> fedfw.Atom:
        """A stack of one, of the atom that the server reads."""
        readers = self.plan.constraint.net_readers((P,), self.plan.mixing(t)[1])
        parcels = parcel_readers(readers, self.algorithm.sends(t, P), P)
        return stack_atoms([read_framed(Reader(data), parcels)])

    def open(self, t: int, who: list[int], wants_evidence: bool = False) -> tuple[Round, list[Upload]]:
        """A round up to the point where every client has stepped; the uploads have not arrived yet."""
        coordinator, rows = self.coordinator, torch.tensor(who)
        now = coordinator.open(t, [rows])
        message = coordinator.announce(now, wants_evidence=wants_evidence)
        coordinator.number(now)
        uploads = []
        for i, base in zip(who, now.bases.tolist(), strict=True):
            vectors = self.received(now, i, base)
            own = Message(t, vectors.pop("xbar", self.problem.start), vectors, message.wants_evidence)
            gradient, lmo = self.oracles(torch.tensor([i]), t)
            self.clients[i], atoms, evidence = self.algorithm.client_step(
                self.plan, self.clients[i], own, gradient, lmo
            )
            if self.algorithm.contract.up is Up.ATOM:
                atoms = self.arrived(atoms[0].to_bytes(), t)
            told = None if evidence is None else Evidence(evidence.number, None)
            known = coordinator.memory.gather(torch.tensor([i]))
            uploads.append(upload_of(self.algorithm, torch.tensor([i]), atoms, known, told))
        return now, uploads

    def round(self, t: int, who: list[int], **options: Any) -> Round:
        """A round in which everybody arrives, as one stack."""
        before = [self.clients[i] for i in range(N)]
        now, uploads = self.open(t, who, **options)
        numbers = [upload.evidence.number for upload in uploads if upload.evidence is not None]
        evidence = Evidence(torch.cat(numbers), None) if numbers else None
        atoms = stack_atoms([upload.atoms[0] for upload in uploads])
        known = self.coordinator.memory.gather(torch.tensor(who))
        now.arrive(upload_of(self.algorithm, torch.tensor(who), atoms, known, evidence))
        self.coordinator.close(now)
        assert all(self.clients[i] is before[i] for i in range(N) if i not in who)
        return now


ORACLES = {
    "fedfw": fedfw.FedFW(fedfw.L2Ball(1.0), penalty=0.05),
    "fedfw, momentum": fedfw.FedFW(fedfw.L2Ball(1.0), penalty=0.05, momentum=0.9),
    "fedfw+": fedfw.FedFWPlus(fedfw.L2Ball(1.0), penalty=0.05),
    "fedfw-sto": fedfw.FedFWSto(fedfw.L2Ball(1.0), penalty=0.05),
    "naive": fedfw.NaiveFW(fedfw.L2Ball(1.0)),
    "fedlmo": fedfw.FedLMO(fedfw.L2Ball(1.0)),
    "local-muon": fedfw.contrib.LocalMuon(fedfw.L2Ball(1.0)),
    "fedmuon": fedfw.contrib.FedMuon(fedfw.L2Ball(1.0)),
    "fedmuon-cv": fedfw.contrib.FedMuonCV(fedfw.L2Ball(1.0)),
    "fedlmo, lazy": fedfw.FedLMO(fedfw.L2Ball(1.0), momentum=0.0, renew_every=3),
}
ATTENDANCE = {"everyone": 1.0, "half": 0.5}


# --- arrivals ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ORACLES)
def test_single_arrivals_are_the_stack(name: str, dtype: torch.dtype) -> None:
    """The same atoms, once as a stack whose memory is known and once client by client, in another order."""
    whole, single = (Federation.of(ORACLES[name], dtype) for _ in range(2))
    rough = 1e-6 if dtype == torch.float32 else 1e-12
    for t, who in enumerate(([*range(N)], [0, 3, 4], [6, 1], [*range(N)]), 1):
        now, uploads = whole.open(t, who)
        rows = torch.tensor(who)
        together = stack_atoms([upload.atoms[0] for upload in uploads])
        after = {key: torch.cat([whole.clients[i][key] for i in who]) for key in whole.clients[0]}
        upload = upload_of(whole.algorithm, rows, together, now.states[0])
        now.arrive(upload, whole.algorithm.contract.rebuilt(after))
        whole.coordinator.close(now)
        one, arriving = single.open(t, who)
        for upload in reversed(arriving):
            one.arrive(upload)
        single.coordinator.close(one)
        assert torch.allclose(whole.xbar, single.xbar, atol=rough)
        assert torch.allclose(whole.points, single.points, atol=rough)
        assert now.traffic == one.traffic
        assert (whole.coordinator.holds == single.coordinator.holds).all()
        for there in (whole, single):
            if there.algorithm.contract.points:
                assert torch.allclose(there.points.mean(0), there.xbar, atol=rough)
        # What the server rebuilt from single atoms is what the clients hold, to the bit.
        for i in who:
            held = single.coordinator.memory.gather(torch.tensor([i]))
            assert all(torch.equal(values, single.clients[i][key]) for key, values in held.items())
        # Sums in another order differ in their last bits: the next round begins from the same ones.
        single.coordinator.load({key: value.clone() for key, value in whole.coordinator.state().items()})
        single.clients, single.held = list(whole.clients), [dict(held) for held in whole.held]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_stack_and_its_slices_give_the_same_bits(dtype: torch.dtype) -> None:
    """Atoms cut from one stack: the clients' points agree to the bit, the sum over them up to the order of adding."""
    stack, slices = (Federation.of(ORACLES["fedfw+"], dtype) for _ in range(2))
    everyone = torch.arange(N)
    for t in range(1, 5):
        rounds = []
        for there in (stack, slices):
            now = there.coordinator.open(t, [everyone])
            message = there.coordinator.announce(now)
            there.coordinator.number(now)
            rounds.append((now, message))
        state = stack.coordinator.memory.gather(everyone)
        gradient, lmo = stack.oracles(everyone, t)
        _, atoms, _ = stack.algorithm.client_step(stack.plan, state, rounds[0][1], gradient, lmo)
        rounds[0][0].arrive(Upload(everyone, atoms, state["x"]))
        for i in range(N):
            rounds[1][0].arrive(Upload(everyone[i : i + 1], stack_atoms([atoms[i]]), state["x"][i : i + 1]))
        for there, (now, _) in zip((stack, slices), rounds, strict=True):
            there.coordinator.close(now)
        assert torch.allclose(stack.xbar, slices.xbar, atol=1e-6)
        # From here on the sums differ in their last bits, and so may everything that follows from them.
        slices.coordinator.server = stack.coordinator.server
        assert torch.equal(stack.points, slices.points)


@pytest.mark.parametrize("attendance", ATTENDANCE)
@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("set_", ["l1", "l2", "box", "ksparse", "product"])
@pytest.mark.parametrize("name", ["fedfw", "fedfw+", "fedfw-sto", "naive", "fedlmo"])
def test_exchanging_bytes_is_the_simulated_run(name: str, set_: str, local_steps: int, attendance: str) -> None:
    """Clients and a server that only exchange bytes give what the simulator gives, and as many bytes both ways."""
    sets = {"ksparse": fedfw.KSparse(3, 0.5), "product": fedfw.Product({"x": fedfw.L1Ball(1.0)})}
    D = sets.get(set_) or Quadratics.on(set_).constraint
    algorithm = fedfw.ALGORITHMS[name](D, **({} if name in ("naive", "fedlmo") else {"penalty": 0.05}))
    options = {"rounds": 4, "participation": ATTENDANCE[attendance], "seed": 6, "local_steps": local_steps}
    there = Federation.of(algorithm, **options)
    run = fedfw.simulate(there.problem, algorithm, eval_every=1, **options)  # type: ignore[arg-type]
    attends = Participation(ATTENDANCE[attendance], N, 6)  # with this seed somebody misses two rounds and returns
    for record in run.history:
        who = attends(record.round).tolist()
        if not who:
            continue
        now = there.round(record.round, who, wants_evidence=algorithm.exact)
        assert (now.traffic.bytes_up, now.traffic.bytes_down) == (record.bytes_up, record.bytes_down), record.round
        points = there.points
        for i in who:
            assert torch.equal(points[i], there.clients[i]["x"][0])
    assert torch.allclose(there.xbar, run.x, atol=1e-12)


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_made_elsewhere_gives_the_same_step(name: str, dtype: torch.dtype) -> None:
    """The server needs the sum only: one that clients masked, or that other processes added up, does as well."""
    D = fedfw.L1Ball(1.0)
    algorithm = fedfw.ALGORITHMS[name](D)
    seen = []

    def watch(simulation: Simulation) -> None:
        now, plan, resolved = simulation.now, simulation.plan, simulation.algorithm
        if not now.uploads:
            return
        step = step_server(resolved, plan, now.after, now.uploads, now.t)
        count = sum(len(upload.who) for upload in now.uploads)
        points, everyone = resolved.contract.points, count == plan.n
        generator = torch.Generator().manual_seed(simulation.t)
        sent = torch.cat([upload.atoms.dense(torch.float64) for upload in now.uploads])
        if points and not everyone:
            sent = sent - torch.cat([upload.x for upload in now.uploads]).double()
        # Every pair of clients shares a mask that one adds and the other takes away: the server sees noise.
        masks = torch.randn(count, count, sent.shape[1], generator=generator, dtype=torch.float64)
        masked = sent + (masks - masks.transpose(0, 1)).sum(1)
        beside = resolved.sends(now.t, P)
        total, *sums = masked.sum(0).to(step.aggregate.total.dtype).split([P, *beside.values()])
        named = dict(zip(beside, sums, strict=True))
        by_hand = replace(step.aggregate, total=total, beside=named)
        server = resolved.server_step(plan, now.after, by_hand, now.t)
        rough = 1e-11 if dtype == torch.float64 else 1e-5
        assert torch.allclose(by_hand.total, step.aggregate.total, atol=rough)
        if name != "frank-wolfe":  # its oracle is asked at the sum itself: a tie may fall another way
            assert torch.allclose(server.xbar, step.server.xbar, atol=rough)
        exact = resolved.server_step(plan, now.after, step.aggregate, now.t)
        assert torch.equal(exact.xbar, step.server.xbar)
        assert all(torch.equal(exact.vectors[key], value) for key, value in step.server.vectors.items())
        seen.append(everyone)

    q = Quadratics.on("l1")
    problem = quadratic_problem(q.A.to(dtype), q.c.to(dtype), q.start.to(dtype))
    attendance = lambda t: range(N) if t % 2 else [0, 3, 5]  # noqa: E731
    fedfw.simulate(problem, algorithm, rounds=6, participation=attendance, callbacks=watch)
    assert set(seen) == {True, False}


# --- the dense sum before the step ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("who", [[*range(N)], [1, 4, 6]])
def test_a_sum_of_single_contributions_is_that_of_a_stack(who: list[int], dtype: torch.dtype) -> None:
    anchored = fedfw.FedFWAnchored(fedfw.L2Ball(1.0), anchor_every=2)
    rows, rough = torch.tensor(who), 1e-12 if dtype == torch.float64 else 1e-5
    learnt, after = [], []
    for groups in ([rows], list(rows.split(1)), [rows[:1], rows[1:]]):
        there = Federation.of(anchored, dtype)
        coordinator, algorithm = there.coordinator, there.coordinator.algorithm
        assert isinstance(algorithm, GathersSums)
        now = coordinator.open(1, [rows])
        assert coordinator.gathers(now)
        coordinator.ask_for_sums(now)
        sent = [
            algorithm.contribute(
                there.plan, coordinator.memory.gather(group), there.xbar, there.oracles(group, 1)[0], 1
            )
            for group in groups
        ]
        learnt.append(coordinator.gather(now, groups, sent))
        after.append({key: value.clone() for key, value in coordinator.state().items()})
        assert coordinator.dense_sums == 1
        assert [len(state["c"]) for state in now.states] == [len(group) for group in groups]
        # Whoever contributed holds the message that asked for it: the next one names what has changed since.
        assert now.bases.tolist() == [coordinator.wire.version] * len(who)
        assert not coordinator.gathers(coordinator.open(2, [rows]))
    q = Quadratics.on("l2")
    gradient = q.gradients(q.start)[rows].mean(0)
    for one, state in zip(learnt, after, strict=True):
        assert torch.allclose(state["server.c"], gradient, atol=rough)
        assert state["server.anchored"].tolist() == [len(who)]
        assert (one.gradient is None) == (len(who) < N)
        assert state.keys() == after[0].keys()
        for key in ("server.xbar", "server.c", "memory.x", "memory.c", "memory.anchored"):
            assert torch.allclose(state[key], after[0][key], atol=rough), key
    if len(who) == N:
        assert learnt[0].loss == pytest.approx(q.value(q.start), rel=1e-5)
        assert learnt[0].gradient is not None
        assert torch.allclose(learnt[0].gradient.double(), q.gradients(q.start).sum(0), atol=rough)


# --- clients that do not come ---


@pytest.mark.parametrize("arriving", [[2], [0, 3, 6], []])
@pytest.mark.parametrize("name", ORACLES)
def test_clients_that_do_not_arrive_are_as_before(name: str, arriving: list[int]) -> None:
    there = Federation.of(ORACLES[name])
    coordinator = there.coordinator
    there.round(1, [*range(N)])
    there.round(2, [0, 1, 2, 3])
    invited = [0, 2, 3, 6, 7]
    before, holds = {key: value.clone() for key, value in coordinator.state().items()}, coordinator.holds.copy()
    now, uploads = there.open(3, invited)
    for upload in uploads:
        if int(upload.who) in arriving:
            now.arrive(upload)
    coordinator.close(now)
    absent = [i for i in range(N) if i not in arriving]
    memory = coordinator.memory.gather(torch.arange(N))
    for key, values in memory.items():
        assert torch.equal(values[absent], before[f"memory.{key}"][absent])
    assert coordinator.holds[absent].tolist() == holds[absent].tolist()
    assert [coordinator.holds[i] for i in arriving] == [now.version] * len(arriving)
    if there.algorithm.contract.points:
        assert torch.allclose(memory["x"].mean(0), there.xbar, atol=1e-12)
    if "ybar" in coordinator.server.vectors:
        assert torch.allclose(memory["y"].mean(0), coordinator.server.vectors["ybar"], atol=1e-12)
    if not arriving:
        after = {key: value for key, value in coordinator.state().items() if not key.startswith("wire.")}
        assert all(value.numpy().tobytes() == before[key].numpy().tobytes() for key, value in after.items())


def test_whoever_did_not_arrive_is_sent_what_it_missed() -> None:
    """A client that took the message and was not counted is told of it by the version that it held before."""
    there = Federation.of(ORACLES["fedfw+"])
    there.round(1, [*range(N)])
    kept = [dict(held) for held in there.held]
    now, uploads = there.open(2, [*range(N)])
    for upload in uploads[:5]:
        now.arrive(upload)
    there.coordinator.close(now)
    for i in range(5, N):
        there.held[i] = kept[i]  # it undoes the round
    now = there.coordinator.open(3, [torch.arange(N)])
    assert now.bases.tolist() == [2] * 5 + [1] * 3
    message = there.coordinator.announce(now)
    there.coordinator.number(now)
    for i, base in enumerate(now.bases.tolist()):
        for name, vector in there.received(now, i, base).items():
            assert torch.equal(vector, there.coordinator.vectors(message)[name])


# --- rounds side by side ---


@pytest.mark.parametrize("closing", [(0, 1), (1, 0)])
@pytest.mark.parametrize("name", ["fedfw", "fedfw, momentum", "fedfw+", "fedfw-sto"])
def test_rounds_that_are_open_at_the_same_time_both_count(name: str, closing: tuple[int, int]) -> None:
    """Each has clients of its own; whichever closes first, the mean over all clients' points stays the model."""
    there = Federation.of(ORACLES[name])
    there.round(1, [*range(N)])
    opened = [there.open(2, [0, 1, 2]), there.open(3, [4, 5, 6, 7])]
    before = there.points.clone()
    for number in closing:
        now, uploads = opened[number]
        for upload in uploads:
            now.arrive(upload)
        there.coordinator.close(now)
        assert torch.allclose(there.points.mean(0), there.xbar, atol=1e-12)
    assert torch.equal(there.points[3], before[3])
    for i in (0, 1, 2, 4, 5, 6, 7):
        assert not torch.equal(there.points[i], before[i])
        assert torch.equal(there.points[i], there.clients[i]["x"][0])
    if "ybar" in there.coordinator.server.vectors:
        y = there.coordinator.memory.gather(torch.arange(N))["y"]
        assert torch.allclose(y.mean(0), there.coordinator.server.vectors["ybar"], atol=1e-12)
    there.round(4, [*range(N)])  # and everyone can be told what happened


# --- clients that come and go ---


@pytest.mark.parametrize("name", ["fedfw", "fedfw+"])
def test_clients_that_join_and_leave_keep_the_mean(name: str) -> None:
    there = Federation.of(ORACLES[name])
    coordinator = there.coordinator
    for t in (1, 2):
        there.round(t, [*range(N)], wants_evidence=True)
    assert coordinator.best_bound is not None
    xbar = there.xbar.clone()
    newcomer = there.algorithm.contract.rebuilt(there.algorithm.start_clients(there.xbar[None].clone()))
    coordinator.join(3, newcomer)
    assert (coordinator.plan.n, coordinator.memory.n) == (N + 1, N + 1)
    assert torch.allclose(there.xbar, xbar, atol=1e-12)  # whoever enters at the mean leaves it alone
    assert coordinator.holds.tolist() == [2, 2, 2, 0, 2, 2, 2, 2, 2]
    assert coordinator.best_bound is None  # another sum of losses has another optimum
    coordinator.leave(0)
    state = coordinator.memory.gather(torch.arange(N))
    assert coordinator.plan.n == N
    assert torch.allclose(there.xbar, state["x"].mean(0), atol=1e-12)
    assert coordinator.holds.tolist() == [2, 2, 0, 2, 2, 2, 2, 2]
    if "ybar" in coordinator.server.vectors:
        assert torch.allclose(coordinator.server.vectors["ybar"], state["y"].mean(0), atol=1e-12)


# --- checkpoints ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("set_", ["l1", "l2"])
@pytest.mark.parametrize("name", ["fedfw", "fedfw+", "fedfw-sto"])
def test_stored_and_loaded_to_the_bit(name: str, set_: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """A checkpoint between any two rounds: what follows is the same, every byte of it."""
    algorithm = fedfw.ALGORITHMS[name](Quadratics.on(set_).constraint, penalty=0.05)
    rounds = [[*range(N)], [0, 2, 5], [*range(N)], [1], [*range(N)], [3, 4]]

    there, traffic, clients = Federation.of(algorithm, dtype), [], []
    for t, who in enumerate(rounds, 1):
        traffic.append(there.round(t, who, wants_evidence=algorithm.exact).traffic)
        save_checkpoint(tmp_path / str(t), there.coordinator.state(), {})
        clients.append(deepcopy((there.clients, there.held)))
    whole = there.coordinator.state()
    assert any(float(value.double().abs().sum()) for value in whole.values())
    for t in range(1, len(rounds)):
        there = Federation.of(algorithm, dtype)
        there.coordinator.load(load_checkpoint(tmp_path / str(t))[0])
        there.clients, there.held = clients[t - 1]
        later = [there.round(s, who, wants_evidence=algorithm.exact) for s, who in enumerate(rounds[t:], t + 1)]
        assert [now.traffic for now in later] == traffic[t:]
        again = there.coordinator.state()
        assert again.keys() == whole.keys()
        for key, value in whole.items():
            assert again[key].numpy().tobytes() == value.numpy().tobytes(), key


def test_a_state_is_loaded_with_clients_that_joined() -> None:
    there, fresh = (Federation.of(ORACLES["fedfw+"]) for _ in range(2))
    there.round(1, [*range(N)])
    rebuilt = there.algorithm.contract.rebuilt(there.algorithm.start_clients(there.xbar[None].clone()))
    there.coordinator.join(8, rebuilt)
    fresh.coordinator.load(there.coordinator.state())
    assert fresh.plan.n == N + 1
    assert np.array_equal(fresh.coordinator.holds, there.coordinator.holds)
    assert torch.equal(fresh.xbar, there.xbar)


def test_only_what_the_server_rebuilds_is_kept() -> None:
    """Averages of a client's gradients stay with the client."""
    there = Federation.of(ORACLES["fedfw, momentum"])
    kept = there.algorithm.contract.remembers
    there.round(1, [*range(N)])
    assert {"d", "seen"} <= set(there.clients[0])
    held = there.coordinator.memory.gather(torch.arange(N))
    assert set(held) == {name for name, where in kept.items() if where is Kept.REBUILT} == {"x"}


def test_bounds_only_improve() -> None:
    coordinator = Federation.of(ORACLES["fedfw"]).coordinator
    best = []
    for bound in (None, -3.0, -5.0, None, -1.0, -2.0):
        coordinator.improve(bound)
        best.append(coordinator.best_bound)
    assert best == [None, -3.0, -3.0, -3.0, -1.0, -1.0]
