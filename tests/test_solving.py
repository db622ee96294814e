"""The central solver against independent answers."""

import numpy as np
import pytest
import torch

import fedfw
from fedfw_reproduction.known_quadratics import SETS, P, Quadratics


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


def test_softmax_regression_against_scikit_learn() -> None:
    """Least loss inside the l2 ball whose radius is the norm of the ridge solution: the same point."""
    from sklearn.linear_model import LogisticRegression

    problem = fedfw.load_problem("digits", "mclr", clients=4, partition="iid", weights="samples")
    data = fedfw.data.load_data("digits")
    inputs, labels = data.train.take()
    features = np.hstack(
        [inputs.flatten(1).numpy(), np.ones((len(inputs), 1))]
    )  # the bias is in the ball too
    ridge = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-8, max_iter=2000).fit(
        features, labels.numpy()
    )
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


def test_giving_up_gives_a_warning() -> None:
    q = Quadratics.on("box")
    with pytest.warns(
        UserWarning, match=r"solve gave up after 10 steps: F\* is known to .*, expected tol=1e-12"
    ):
        optimum = fedfw.solve(q.problem, q.constraint, tol=1e-12, max_steps=10)
    assert optimum.stopped is not None
    assert optimum.steps == 10
    assert optimum.uncertainty > 1e-12
    assert optimum.x.shape == (P,)


@pytest.mark.parametrize("constraint", ["l1:0.01", "l1:30", "l2:0.01", "simplex:1"])
def test_tight_tolerances_in_float32(constraint: str) -> None:
    """At a vertex the step is zero, and near the optimum decreases drown in rounding: neither may
    lead astray.
    """
    problem = fedfw.load_problem("digits", "mclr", clients=3, partition="iid")
    optimum = fedfw.solve(problem, fedfw.parse_set(constraint), tol=2e-5, max_steps=1500)
    assert 0 <= optimum.uncertainty <= 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_problem_of_one_matrix_has_matrices_for_answers(dtype: torch.dtype) -> None:
    """The nearest matrix of nuclear norm 1 to diag(3, 1): diag(1, 0); the set itself can be asked
    about it.
    """
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
    assert (
        problem.value(run.x)
        == problem.value(run.x.flatten())
        == pytest.approx(run.history[-1].loss, rel=1e-5)
    )
    _, gradient = problem.value_and_gradient(run.x)
    assert gradient.shape == (2, 2)
    assert torch.allclose(gradient, 2 * (run.x - target), atol=1e-5)
    assert torch.equal(problem.trained(run.x)["x"], run.x)  # type: ignore[index]


# --- losses with kinks ---


def test_functions_with_kinks_stall_with_a_warning() -> None:
    def corner(x: torch.Tensor) -> torch.Tensor:
        return (x[0] - x[1]).abs() + 0.1 * (x - 1).square().sum() + (x[0] + x[1] - 0.7).abs()

    problem = fedfw.Problem.from_losses(
        [corner], torch.tensor([2.0, -1.0], dtype=torch.float64), convex=True
    )
    with pytest.warns(
        UserWarning,
        match=r"solve gave up .* expected tol=0\.0001.*with kinks, such as \|x\|, stall",
    ):
        optimum = fedfw.solve(problem, "linf:3", tol=1e-4, max_steps=100)
    assert optimum.uncertainty > 1e-4
    assert optimum.lower_bound <= 0.2 * 0.65**2 <= optimum.value  # at (0.35, 0.35)
