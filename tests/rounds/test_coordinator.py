"""One round from the server's side: arrivals one by one, clients that do not come, rounds side by
side, checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.algorithms import Algorithm, Evidence, Message, Plan, State, Upload
from fedfw.algorithms.channels import readers
from fedfw.algorithms.steps import upload_of
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
from fedfw_reproduction.known_quadratics import Quadratics

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
