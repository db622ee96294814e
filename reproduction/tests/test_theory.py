"""The bounds of the theory with their constants, and the slopes that correct code meets."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.algorithms.paths import values_at

import fedfw
from fedfw_reproduction import theory
from fedfw_reproduction.known_quadratics import SETS, P, Quadratics, slope
from fedfw_reproduction.study import Effort

# A curved set and one with corners by default; `pytest -m slow` has the others.
MINUTES_OF_THEM = [
    name if name in ("l1", "l2") else pytest.param(name, marks=pytest.mark.slow) for name in SETS
]


EFFORT = Effort(rounds=520, seeds=2, every=10)
BOUNDS = [
    pytest.param(title, marks=() if title.endswith(("l1", "l2", "T2p")) else pytest.mark.slow)
    for title, _ in theory.studies(EFFORT)
]


@pytest.mark.parametrize("title", BOUNDS)
def test_bounds_and_slopes_of_the_studies_hold(title: str) -> None:
    for study in dict(theory.studies(EFFORT))[title]():
        assert study.passed, study.setting


def residuals_of_all_rounds(q: Quadratics, algorithm: fedfw.Algorithm, rounds: int) -> torch.Tensor:
    """F - F* after every round, from the models: an evaluation costs more than such a round."""
    models: list[torch.Tensor] = []

    def keep(simulation: fedfw.simulation.Simulation) -> None:
        models.append(simulation.xbar.clone())

    options = {"rounds": rounds, "eval_every": rounds, "callbacks": keep}
    run = fedfw.simulate(q.problem, algorithm, **options)
    values = values_at(q, torch.stack(models))
    assert float(values[-1]) == pytest.approx(run.history[-1].loss, rel=1e-12)
    return values - q.least


@pytest.mark.parametrize("name", SETS)
def test_the_reference_optimum_agrees_with_scipy(name: str) -> None:
    q = Quadratics.on(name)
    # u - v with u, v >= 0 makes the l1 ball smooth; the other sets use u alone.
    split = name == "l1"

    def point(z: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(z[:P] - z[P:] if split else z)

    def value(z: np.ndarray) -> tuple[float, np.ndarray]:
        g = q.gradients(point(z)).sum(0).numpy()
        return q.value(point(z)), np.concatenate([g, -g]) if split else g

    size = 2 * P if split else P
    limits = {
        "l2": ((None, None), [{"type": "ineq", "fun": lambda z: 1 - z @ z}]),
        "l1": ((0, None), [{"type": "ineq", "fun": lambda z: 1 - z.sum()}]),
        "box": ((-0.5, 0.5), []),
        "simplex": ((0, None), [{"type": "eq", "fun": lambda z: 1 - z.sum()}]),
    }
    bounds, constraints = limits[name]
    options = {"maxiter": 2000, "ftol": 1e-14}
    found = minimize(
        value, np.full(size, 1 / size), jac=True, method="SLSQP", bounds=[bounds] * size, constraints=constraints,
        options=options,
    )  # fmt: skip
    assert q.least == pytest.approx(found.fun, abs=1e-8)


@pytest.mark.parametrize("name", MINUTES_OF_THEM)
def test_the_slope_of_fedfw_plus(name: str) -> None:
    q = Quadratics.on(name)
    lam = 3 * q.best_penalty
    t = torch.arange(100, 1201, 5)
    residuals = residuals_of_all_rounds(
        q, fedfw.FedFWPlus(q.constraint, penalty=lam, momentum=0.0), 1200
    )
    assert slope(t, residuals[t - 1]) <= -0.7


@pytest.mark.parametrize("name", MINUTES_OF_THEM[:3])
@pytest.mark.parametrize("every", [1, 5, 20])
@pytest.mark.parametrize("gradient_at", ["xbar", "own"])
def test_anchored_bound_and_slope(name: str, every: int, gradient_at: str) -> None:
    q = Quadratics.on(name)
    algorithm = fedfw.FedFWAnchored(
        q.constraint, penalty=0.0, momentum=0.0, anchor_every=every, gradient_at=gradient_at
    )
    residuals = residuals_of_all_rounds(q, algorithm, 500)
    t = torch.arange(2, 502, dtype=torch.float64)
    bound = (2 + 24 * (every - 1)) * q.n * q.Lh * q.D**2 / t
    assert bool((residuals <= bound).all())
    late = torch.arange(100, 500)
    assert slope(late, residuals[late]) <= -0.9
