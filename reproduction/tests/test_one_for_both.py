"""The algorithms that only experiments know: errors as large as asked for, duals that add up to
zero.
"""

import pytest
import torch

from fedfw.algorithms import Client, FedFW, FedFWAnchored, Message, Rates, Run
from fedfw.algorithms.optin import is_certifying
from fedfw.atoms import Atom
from fedfw.problems import Problem
from fedfw.problems.quadratics import quadratic_problem, random_quadratics
from fedfw.sets import ConstraintSet, L1Ball, L2Ball
from fedfw.simulation import Options, Simulation, simulate
from fedfw_reproduction import one_for_both
from fedfw_reproduction.one_for_both import AveragedDuals, KeptAnchors
from fedfw_reproduction.oracle_errors import KINDS, SloppyFedFW
from fedfw_reproduction.protocols import QUICK


def problem() -> Problem:
    A, c = random_quadratics(4, 6, 10.0, 2.0, seed=0)
    return quadratic_problem(A, c, torch.zeros(6, dtype=torch.float64))


@pytest.mark.parametrize("D", [L1Ball(2.0), L2Ball(2.0)], ids=["l1", "l2"])
@pytest.mark.parametrize(
    ("kind", "delta"), [("multiplicative", 0.3), ("additive", 0.02), ("shrinking", 0.05)]
)
def test_the_oracle_errs_exactly_as_asked(D: ConstraintSet, kind: str, delta: float) -> None:
    algorithm = SloppyFedFW(D, penalty=0.1, momentum=0.0, kind=kind, delta=delta, scale=2.0)
    run = Run(4, D, torch.float64)
    g = torch.randn(4, 6, dtype=torch.float64)
    asked: list[torch.Tensor] = []

    class Exact:
        m = 4

        def gradient(self, x: torch.Tensor, times: str = "w", full: bool = False) -> torch.Tensor:
            return g

        def lmo(self, direction: torch.Tensor) -> Atom:
            asked.append(direction)
            return D.lmo(direction, batch=True)

    x = 0.1 * torch.randn(4, 6, dtype=torch.float64)
    eta = 0.5
    message = Message(3, {"xbar": x[0]}, (Rates(eta, lam=0.1),), eta, [1.0], 1e-6)
    _, payload = algorithm.local_update(run, Client({"x": x}, {}), message, Exact())
    sent = payload["atom"]
    assert not is_certifying(algorithm)  # an answer that errs proves nothing
    best = D.lmo(asked[0], batch=True).dot(asked[0])
    error = sent.dot(asked[0]) - best
    wanted = {
        "multiplicative": 0.3 * ((x * asked[0]).sum(1) - best),
        "additive": 0.04,
        "shrinking": 0.1 * eta,
    }[kind]
    most = (
        D.lmo(asked[1], batch=True).dot(asked[0]) - best
    )  # where it errs all the way to the random point
    assert torch.allclose(
        error, torch.as_tensor(wanted, dtype=torch.float64).minimum(most), atol=1e-5
    )
    assert float(error.max()) > 0
    assert all(D.contains(point) for point in sent.dense(torch.float64))
    assert kind in KINDS


def test_without_an_error_it_is_fedfw() -> None:
    D = L1Ball(2.0)
    exact, sloppy = (
        simulate(problem(), algorithm, rounds=20)
        for algorithm in (FedFW(D, penalty=0.1), SloppyFedFW(D, penalty=0.1, delta=0.0))
    )
    assert torch.equal(exact.x, sloppy.x)


def test_kept_anchors_move_nobody_and_have_the_same_duals() -> None:
    plain, kept = (
        Simulation(
            problem(),
            kind(L2Ball(2.0), momentum=0.9, anchor_every=5, penalty=0.0, gradient_at="own"),
            Options(rounds=5),
        )
        for kind in (FedFWAnchored, KeptAnchors)
    )
    for simulation in (plain, kept):
        simulation.run()
    assert torch.allclose(plain.server.xbar, kept.server.xbar)  # the same until the second anchor
    for simulation in (plain, kept):
        simulation.options = Options(rounds=6)
        simulation.run()
    assert torch.allclose(plain.clients["c"], kept.clients["c"])
    assert float((plain.clients["x"] - plain.server.xbar).norm()) < float(
        (kept.clients["x"] - kept.server.xbar).norm()
    )
    assert torch.allclose(kept.clients["x"].mean(0), kept.server.xbar, atol=1e-9)


def test_averaged_duals_add_up_to_zero() -> None:
    simulation = Simulation(
        problem(), AveragedDuals(L1Ball(2.0), penalty=0.0, momentum=0.9, every=5), Options(rounds=6)
    )
    run = simulation.run()
    y = simulation.clients["y"]
    assert float(y.norm()) > 0
    assert torch.allclose(y.sum(0), torch.zeros(6, dtype=torch.float64), atol=1e-12)
    assert run.lower_bound <= run.history[-1].loss  # type: ignore[operator]


def test_fedlmo_is_compared_on_the_same_problems() -> None:
    for constraint in one_for_both.PENALTIES:
        rows = one_for_both.variants(constraint, QUICK)
        assert list(rows)[-2:] == ["FedLMO, 1 local step", "FedLMO, 3 local steps"]
        optima = {row.optimum for row in rows.values()}
        assert len(optima) == 1
