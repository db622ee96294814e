"""What is proven of FedLMO: every round, the rate, and what is left of it with newcomers, momentum
and noise.
"""

import math
from dataclasses import replace
from typing import Any

import lmo_bounds
import pytest
import torch
from lmo_bounds import PATTERNS, STUDIED, N, exchanged, follow, frank_wolfe_steps, quadratics
from tests.algorithms.paths import gaps_at, values_at

import fedfw
from fedfw.problems.quadratics import quadratic_problem
from fedfw.simulation import Options, Simulation
from fedfw_reproduction import theory
from fedfw_reproduction.known_quadratics import Quadratics, slope

UNEQUAL = (0.3, 0.02, 0.2, 0.1, 0.1, 0.2, 0.05, 0.03)
WHO = {**PATTERNS, "nobody now and then": lambda t: [] if t % 3 == 0 else [t % N, (t + 1) % N]}
DTYPES = {torch.float64: 1e-9, torch.float32: 1e-5}
"""What rounding may add, relative to the values of F."""


def never_above(q: Quadratics, path: lmo_bounds.Path, slack: float) -> float:
    """The largest share of the bound, after the assertion that it held in every round but the
    first.
    """
    measured, limit = (values[1:] for values in lmo_bounds.round_bound(q, path))
    assert bool((measured <= limit + slack * (1 + abs(q.least))).all())
    return float((measured / limit).max())


def run(
    q: Quadratics, pattern: str = "everybody", dtype: torch.dtype = torch.float64, **how: Any
) -> lmo_bounds.Path:
    """45 rounds of FedLMO after the control variates were exchanged."""
    eta, who = exchanged(frank_wolfe_steps, WHO[pattern])
    steps = how.pop("local_steps", 3)
    method = how.pop("method", fedfw.FedLMO)
    algorithm = method(q.constraint, **{"momentum": 0.0, "schedule": eta} | how)
    problem = quadratic_problem(
        q.A.to(dtype), q.c.to(dtype), q.start.to(dtype), q.weights, q.convex
    )
    return follow(q, algorithm, who, problem, rounds=46, local_steps=steps)


@pytest.mark.parametrize("name", STUDIED)
@pytest.mark.parametrize("pattern", WHO)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_round_keeps_the_theorem(name: str, pattern: str, dtype: torch.dtype) -> None:
    shares = []
    for K, near in ((1, True), (3, False), (10, True)):
        q = quadratics(name, 30.0, near)
        shares.append(never_above(q, run(q, pattern, dtype, local_steps=K), DTYPES[dtype]))
    q = quadratics(name, 3.0, True, UNEQUAL)
    shares.append(never_above(q, run(q, pattern, dtype), DTYPES[dtype]))
    assert max(shares) > 0.1  # a bound that is never near says little


def test_how_far_clients_are_apart_changes_nothing_once_control_variates_are_there() -> None:
    paths = [run(quadratics("l2", apart), "3 of 8").points for apart in (1.0, 30.0)]
    assert float((paths[0] - paths[1]).abs().max()) < 1e-6
    plain = [
        run(quadratics("l2", apart), "3 of 8", correction=False).points for apart in (1.0, 30.0)
    ]
    assert float((plain[0] - plain[1]).abs().max()) > 0.1


def test_without_control_variates_the_bound_breaks() -> None:
    q = quadratics("l2", 30.0)
    algorithm = fedfw.FedLMO(q.constraint, momentum=0.0, schedule="convex", correction=False)
    path = follow(q, algorithm, PATTERNS["everybody"], rounds=400)
    never_above(q, path, 1e-9)  # as for clients that were never present
    corrected = replace(path, algorithm=replace(path.algorithm, correction=True))
    measured, limit = lmo_bounds.round_bound(q, corrected)
    assert bool((measured > limit)[1:].any())


@pytest.mark.parametrize("name", STUDIED)
@pytest.mark.parametrize("K", [1, 10])
def test_rate_with_everybody(name: str, K: int) -> None:
    for apart, near in list(lmo_bounds.PROBLEMS.values())[1:]:
        q = quadratics(name, apart, near)
        algorithm = fedfw.FedLMO(q.constraint, momentum=0.0, schedule="convex")
        path = follow(q, algorithm, PATTERNS["everybody"], rounds=120, local_steps=K)
        h = values_at(q, path.points[1:]) - q.least
        t = torch.arange(2, 122, dtype=torch.float64)
        assert bool((h <= lmo_bounds.rate_bound(q, float(h[0]), t)).all())
        assert slope(t[20:], h[20:]) <= -0.9


@pytest.mark.parametrize(
    "how",
    [{"momentum": 0.9}, {"momentum": 0.5}, {"renew_every": 5}, {"method": fedfw.ServerLMO}],
)
@pytest.mark.parametrize("pattern", ["everybody", "3 of 8"])
def test_momentum_lazy_renewals_and_one_oracle_at_the_server(
    how: dict[str, Any], pattern: str
) -> None:
    for name in ("l1", "l2"):
        q = quadratics(name, 30.0)
        for K in (1,) if "method" in how else (1, 3):
            never_above(q, run(q, pattern, **how, local_steps=K), 1e-9)


@pytest.mark.parametrize("name", ["l1", "l2"])
def test_newcomers_cost_what_their_gradients_differ_by(name: str) -> None:
    """Nothing is exchanged at the start, and clients come for the first time at any time."""
    q = quadratics(name, 30.0, True, UNEQUAL)
    algorithm = fedfw.FedLMO(q.constraint, momentum=0.0, schedule="convex")
    for K in (1, 3):
        path = follow(
            q, algorithm, lambda t: range(1 + min(t // 10, N - 1)), rounds=120, local_steps=K
        )
        never_above(q, path, 1e-9)


def test_losses_that_are_not_convex() -> None:
    """The same in every round, with the gap, and what follows for the least gap of a run."""
    flat = theory.indefinite("l2")
    q = Quadratics(flat.constraint, flat.A, 10 * flat.c, convex=False)
    for T in (100, 400):
        eta, who = exchanged(lambda t, T=T: T**-0.5, PATTERNS["everybody"])  # type: ignore[misc]
        algorithm = fedfw.FedLMO(q.constraint, momentum=0.0, schedule=eta)
        path = follow(q, algorithm, who, rounds=T + 1, local_steps=3)
        a, R = lmo_bounds.remainders(q, path)
        values, gap = values_at(q, path.points), gaps_at(q, path.points[1:-1])
        assert bool(
            (values[2:] <= values[1:-1] - a[1:] * gap + R[1:] + 1e-9 * values.abs().max()).all()
        )
        unit = float(torch.linalg.eigvalsh(q.A).abs().max()) * q.D**2
        assert float(gap.min()) <= (2 * float(values[1] - values.min()) + 3.5 * unit) / math.sqrt(T)


@pytest.mark.parametrize("every", [1, 4])
def test_a_lazy_control_variate_is_the_gradient_at_the_shared_model(every: int) -> None:
    """With renewals in every round it is the mean over the local points, which are where the next
    round's will be.
    """
    q = quadratics("l2", 30.0)
    algorithm = fedfw.FedLMO(q.constraint, momentum=0.0, schedule="convex", renew_every=every)
    simulation = Simulation(q.problem, algorithm, Options(rounds=1, local_steps=3))
    simulation.run()
    at_xbar = q.gradients(q.start) / q.w[:, None]
    assert torch.allclose(simulation.clients["c"], at_xbar) == (every > 1)
