"""One round from the server's side: arrivals one by one, clients that do not come, rounds side by
side, checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.algorithms import Algorithm, Evidence, Message, Plan, State, Upload
from fedfw.algorithms.channels import readers
from fedfw.algorithms.steps import step_server, upload_of
from fedfw.algorithms.taking_part import take_part
from fedfw.atoms.base import read_framed, stack_atoms
from fedfw.atoms.bits import Reader
from fedfw.problems.oracles import Cohort, PlainOracles
from fedfw.problems.quadratics import quadratic_problem
from fedfw.rounds.coordinator import Coordinator, Round
from fedfw.rounds.memory import EveryRow
from fedfw.rounds.options import Options
from fedfw.rounds.wire import decoded
from fedfw.simulation import Simulation
from fedfw_reproduction.known_quadratics import P, Quadratics

DTYPES = [torch.float32, torch.float64]
N = 8


@dataclass
class Federation:
    """A coordinator and its clients, who hold nothing but their memory and the bytes that they were
    sent.
    """

    problem: fedfw.Problem
    coordinator: Coordinator
    clients: list[State]
    held: list[dict[str, Tensor]]
    """What each client was sent last, decoded."""

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        dtype: torch.dtype = torch.float64,
        set_: str = "l2",
        **options: Any,
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
        self.held[i] = {
            name: decoded(one, self.held[i].get(name, zero)) for name, one in data.items()
        }
        return dict(self.held[i])

    def arrived(self, data: bytes, t: int) -> fedfw.Atom:
        """A stack of one, of the atom that the server reads."""
        allowed = readers(self.algorithm, self.plan, Message(t, self.problem.start))
        return stack_atoms([read_framed(Reader(data), allowed)])

    def open(
        self, t: int, who: list[int], wants_evidence: bool = False
    ) -> tuple[Round, list[Upload]]:
        """A round up to the point where every client has stepped; the uploads have not arrived yet."""
        coordinator, rows = self.coordinator, torch.tensor(who)
        now = coordinator.open(t, [rows])
        message = coordinator.announce(now, wants_evidence=wants_evidence)
        coordinator.number(now)
        uploads = []
        for i, base in zip(who, now.bases.tolist(), strict=True):
            vectors = self.received(now, i, base)
            own = Message(
                t, vectors.pop("xbar", self.problem.start), vectors, message.wants_evidence
            )
            gradient, lmo = self.oracles(torch.tensor([i]), t)
            self.clients[i], atoms, evidence = take_part(
                self.algorithm, self.plan, self.clients[i], own, gradient, lmo
            )
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


# --- arrivals ---


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_made_elsewhere_gives_the_same_step(name: str, dtype: torch.dtype) -> None:
    """The server needs the sum only: one that clients masked, or that other processes added up,
    does as well.
    """
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
        # Every pair of clients shares a mask that one adds and the other takes away: the server
        # sees noise.
        masks = torch.randn(count, count, sent.shape[1], generator=generator, dtype=torch.float64)
        masked = sent + (masks - masks.transpose(0, 1)).sum(1)
        beside = resolved.sends(now.t, P)
        total, *sums = masked.sum(0).to(step.aggregate.total.dtype).split([P, *beside.values()])
        named = dict(zip(beside, sums, strict=True))
        by_hand = replace(step.aggregate, total=total, beside=named)
        server = resolved.server_step(plan, now.after, by_hand, now.t)
        rough = 1e-11 if dtype == torch.float64 else 1e-5
        assert torch.allclose(by_hand.total, step.aggregate.total, atol=rough)
        if (
            name != "frank-wolfe"
        ):  # its oracle is asked at the sum itself: a tie may fall another way
            assert torch.allclose(server.xbar, step.server.xbar, atol=rough)
        exact = resolved.server_step(plan, now.after, step.aggregate, now.t)
        assert torch.equal(exact.xbar, step.server.xbar)
        assert all(
            torch.equal(exact.vectors[key], value) for key, value in step.server.vectors.items()
        )
        seen.append(everyone)

    q = Quadratics.on("l1")
    problem = quadratic_problem(q.A.to(dtype), q.c.to(dtype), q.start.to(dtype))
    attendance = lambda t: range(N) if t % 2 else [0, 3, 5]  # noqa: E731
    fedfw.simulate(problem, algorithm, rounds=6, participation=attendance, callbacks=watch)
    assert set(seen) == {True, False}


# --- the dense sum before the step ---


# --- clients that do not come ---


# --- rounds side by side ---


@pytest.mark.parametrize("closing", [(0, 1), (1, 0)])
@pytest.mark.parametrize("name", ["fedfw", "fedfw, momentum", "fedfw+", "fedfw-sto"])
def test_rounds_that_are_open_at_the_same_time_both_count(
    name: str, closing: tuple[int, int]
) -> None:
    """Each has clients of its own; whichever closes first, the mean over all clients' points stays
    the model.
    """
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


# --- checkpoints ---
