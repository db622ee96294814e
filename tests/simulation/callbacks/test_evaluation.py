"""What a record says of the model is what an independent look at it says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw.simulation import Simulation
from fedfw.testing.known_quadratics import SETS, Quadratics


def test_the_surrogate_is_what_it_says() -> None:
    q = Quadratics.on("l2")
    algorithm = fedfw.FedFW(q.constraint, penalty=0.1, momentum=0.9)
    points = {}

    def watch(simulation: Simulation) -> None:
        points[simulation.t] = simulation.clients["x"].clone()

    run = fedfw.simulate(q.problem, algorithm, rounds=4, participation=0.5, callbacks=watch)
    for record in run.history:
        x = points[record.round]
        values = torch.einsum("ni,nij,nj->n", x - q.c, q.A, x - q.c) / 2
        assert record.lam is not None
        expected = float((q.w * values).sum()) + record.lam / 2 * float((x - x.mean(0)).square().sum())
        assert record.surrogate == pytest.approx(expected)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("algorithm", ["fedfw", "fedfw-anchored", "frank-wolfe", "fedavg"])
def test_loss_gap_consensus_and_bound(name: str, algorithm: str) -> None:
    q = Quadratics.on(name)

    def watch(simulation: Simulation) -> None:
        record, xbar = simulation.history[-1], simulation.xbar
        gradient = q.gradients(xbar).sum(0)
        s = q.constraint.lmo(gradient).dense(torch.float64)
        assert record.loss == pytest.approx(q.value(xbar))
        assert record.gap == pytest.approx(float((gradient * (xbar - s)).sum()), rel=1e-5, abs=1e-6)
        assert record.lower_bound is not None
        assert record.lower_bound >= record.loss - record.gap - 1e-9
        assert record.lower_bound <= q.least + 1e-9
        assert record.distance == 0.0
        if simulation.algorithm.contract.points:
            apart = float((simulation.clients["x"] - xbar).square().sum() ** 0.5)
            assert record.consensus == pytest.approx(apart, abs=1e-9)
        else:
            assert record.consensus is None
            assert record.surrogate is None

    fedfw.simulate(q.problem, fedfw.ALGORITHMS[algorithm](q.constraint), rounds=6, participation=0.6, callbacks=watch)


def test_test_data_are_looked_at_when_there_are_some() -> None:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(9, 4, generator=generator), torch.arange(9) % 3) for _ in range(3)]
    for test in (None, data[0]):
        problem = fedfw.Problem(torch.nn.Linear(4, 3), nnf.cross_entropy, data, test=test)
        record = fedfw.simulate(problem, fedfw.FedFW(fedfw.L2Ball(2.0)), rounds=2).history[-1]
        assert (record.accuracy is None) == (record.test_loss is None) == (test is None)


def test_rounds_between_evaluations_have_no_values() -> None:
    q = Quadratics.on("l1")
    run = fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.1, momentum=0.5), rounds=4, eval_every=4)
    for record in run.history[:3]:
        assert (record.loss, record.gap, record.surrogate, record.consensus, record.distance) == (None,) * 5
        assert record.participants == 8
        assert record.eta is not None
