"""The central solver against independent answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedfw
from fedfw.testing.known_quadratics import SETS, P, Quadratics


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


def test_progress_of_a_solution(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfw.report.bars._PATIENCE", 0.0)
    q = Quadratics.on("l1")
    quiet = fedfw.solve(q.problem, q.constraint, progress=False)
    assert capsys.readouterr().err == ""
    assert fedfw.solve(q.problem, q.constraint, progress=True).value == quiet.value
    assert "F* is between" in capsys.readouterr().err
    with pytest.raises(TypeError, match="progress=1, expected True, False or a function"):
        fedfw.solve(q.problem, q.constraint, progress=1)  # type: ignore[arg-type]


def test_a_solution_that_may_not_take_long() -> None:
    q = Quadratics.on("l1")
    hurried = fedfw.solve(q.problem, q.constraint, tol=1e-12, max_seconds=1e-9)
    assert hurried.steps == 1
    assert hurried.lower_bound <= q.least <= hurried.value
    with pytest.raises(ValueError, match=r"max_seconds=0, expected a positive number"):
        fedfw.solve(q.problem, q.constraint, max_seconds=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_problem_of_one_matrix_has_matrices_for_answers(dtype: torch.dtype) -> None:
    """The nearest matrix of nuclear norm 1 to diag(3, 1): diag(1, 0); the set itself can be asked about it."""
    target = torch.diag(torch.tensor([3.0, 1.0], dtype=dtype))

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x - target.to(x.dtype)).square().sum()

    problem = fedfw.Problem.from_losses([f, f], torch.zeros(2, 2, dtype=dtype), convex=True)
    ball = fedfw.NuclearBall(1.0)
    optimum = fedfw.solve(problem, ball, tol=1e-6)
    assert torch.allclose(optimum.x, torch.diag(torch.tensor([1.0, 0.0], dtype=dtype)), atol=1e-3)
    assert ball.contains(optimum.x, 1e-5)
    run = fedfw.simulate(problem, fedfw.FedFWPlus(ball, penalty=0.1), rounds=20)
    assert run.x.shape == run.feasible.shape == (2, 2)
    assert ball.contains(run.x, 1e-5)
    assert problem.value(run.x) == problem.value(run.x.flatten()) == pytest.approx(run.history[-1].loss, rel=1e-5)
    _, gradient = problem.value_and_gradient(run.x)
    assert gradient.shape == (2, 2)
    assert torch.allclose(gradient, 2 * (run.x - target), atol=1e-5)
    assert torch.equal(problem.trained(run.x)["x"], run.x)  # type: ignore[index]


def test_a_problem_of_several_parameters_has_flat_answers() -> None:
    problem = fedfw.load_problem("digits", clients=3, partition="iid")
    assert fedfw.solve(problem, "l1:5", max_steps=3).x.shape == (650,)
    assert fedfw.simulate(problem, fedfw.FedFW("nuclear:5"), rounds=1).x.shape == (650,)
