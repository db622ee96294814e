"""The central solver against independent answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedfw
from fedfw.studies.quadratics import SETS, P, Quadratics


@pytest.mark.parametrize("name", SETS)
def test_quadratics(name: str) -> None:
    q = Quadratics.on(name)
    optimum = fedfw.solve(q.problem, q.constraint, tol=1e-7)
    assert optimum.lower_bound <= q.least + 1e-12
    assert abs(optimum.value - q.least) < 1e-7 * (optimum.start_value - q.least)
    assert optimum.uncertainty <= 1e-7
    assert torch.allclose(optimum.x, q.optimum, atol=1e-3)
    assert optimum.method == "accelerated projected gradient"
    assert optimum.residual(optimum.start_value) == 1.0


def test_a_set_without_a_projection() -> None:
    class OnlyAnOracle(fedfw.L1Ball):
        has_projection = property(lambda self: False)  # type: ignore[assignment]

    q = Quadratics.on("l1")
    told: list[tuple[int, float, float]] = []
    optimum = fedfw.solve(
        q.problem, OnlyAnOracle(1.0), tol=1e-3, progress=lambda step, value, bound: told.append((step, value, bound))
    )
    assert optimum.method == "Frank-Wolfe"
    assert optimum.uncertainty <= 1e-3
    assert optimum.lower_bound <= q.least <= optimum.value
    assert all(bound <= q.least <= value for _, value, bound in told)


def test_softmax_regression_against_scikit_learn() -> None:
    """Least loss inside the l2 ball whose radius is the norm of the ridge solution: the same point."""
    from sklearn.linear_model import LogisticRegression

    problem = fedfw.load_problem("digits", "mclr", clients=4, partition="iid", weights="samples")
    data = fedfw.data.load_data("digits")
    inputs, labels = data.train.take()
    features = np.hstack([inputs.flatten(1).numpy(), np.ones((len(inputs), 1))])  # the bias is in the ball too
    ridge = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-8, max_iter=2000).fit(features, labels.numpy())
    x = torch.from_numpy(np.concatenate([ridge.coef_[:, :-1].ravel(), ridge.coef_[:, -1]])).float()
    optimum = fedfw.solve(problem, fedfw.L2Ball(float(x.norm())), tol=1e-4)
    assert optimum.uncertainty <= 1e-4
    assert optimum.value == pytest.approx(problem.value(x), rel=1e-3)
    assert float((optimum.x - x).norm()) < 0.03 * float(x.norm())


def test_what_cannot_be_solved_is_refused() -> None:
    network = fedfw.load_problem("digits", "mlp", clients=2, partition="iid")
    with pytest.raises(ValueError, match="known to be convex"):
        fedfw.solve(network, fedfw.L2Ball(1.0))
    with pytest.raises(ValueError, match=r"tol=0.0, max_steps=5000, expected positive numbers"):
        fedfw.solve(Quadratics.on("l2").problem, fedfw.L2Ball(1.0), tol=0.0)


def test_giving_up_is_told() -> None:
    q = Quadratics.on("box")
    optimum = fedfw.solve(q.problem, q.constraint, tol=1e-12, max_steps=10)
    assert optimum.steps == 10
    assert optimum.uncertainty > 1e-12
    assert optimum.x.shape == (P,)


@pytest.mark.parametrize("constraint", ["l1:0.01", "l1:30", "l2:0.01", "simplex:1"])
def test_tight_tolerances_in_float32(constraint: str) -> None:
    """At a vertex the step is zero, and near the optimum decreases drown in rounding: neither may lead astray."""
    problem = fedfw.load_problem("digits", "mclr", clients=3, partition="iid")
    optimum = fedfw.solve(problem, fedfw.parse_set(constraint), tol=2e-5, max_steps=1500)
    assert 0 <= optimum.uncertainty <= 2e-5
