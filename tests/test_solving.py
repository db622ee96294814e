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

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
KINKS = {
    "absolute": torch.nn.L1Loss(),
    "smooth absolute, beta 0": torch.nn.SmoothL1Loss(beta=0.0),
    "smooth absolute, beta 1e-7": torch.nn.SmoothL1Loss(beta=1e-7),
    "hinge": torch.nn.HingeEmbeddingLoss(),
    "hinge, margin -1": torch.nn.HingeEmbeddingLoss(margin=-1.0),
}
BOXES = {"linf:0.6": (-0.6, 0.6), "box:-0.2,2": (-0.2, 2.0)}


def kinked(loss: torch.nn.Module, dtype: torch.dtype, **options: object) -> fedfw.Problem:
    draw = torch.Generator().manual_seed(0)
    clients = []
    for shift in (0.0, 0.5, 1.0):
        x = torch.randn(12, 3, generator=draw, dtype=torch.float64)
        y = x @ torch.tensor([[1.0], [-1.0], [0.5]], dtype=torch.float64) + shift
        y = y + 0.3 * torch.randn(12, 1, generator=draw, dtype=torch.float64)
        y = y.sign() if isinstance(loss, torch.nn.HingeEmbeddingLoss) else y
        clients.append((x.to(dtype), y.to(dtype)))
    torch.manual_seed(0)
    return fedfw.Problem(torch.nn.Linear(3, 1, dtype=dtype), loss, clients, **options)  # type: ignore[arg-type]


def by_linear_programming(
    problem: fedfw.Problem, loss: torch.nn.Module, low: float, high: float
) -> float:
    """The least mean of |score - target|, or of hinges, over a box: one more variable a sample."""
    from scipy.optimize import linprog

    parts = [part.double() for part in problem.losses.data()]
    inputs, targets = torch.cat(parts[::2]).numpy(), torch.cat(parts[1::2]).numpy()
    m = len(inputs)
    design = np.hstack([inputs, np.ones((m, 1))])
    costs, rows, most = np.zeros(4), [], []
    if isinstance(loss, torch.nn.HingeEmbeddingLoss):
        costs = design[targets[:, 0] > 0].sum(0) / m
        design, targets = (
            -design[targets[:, 0] < 0],
            np.full((int((targets < 0).sum()), 1), -loss.margin),
        )
        rows, most = [np.hstack([design, -np.eye(len(design))])], [targets[:, 0]]
    else:
        rows = [np.hstack([sign * design, -np.eye(m)]) for sign in (1, -1)]
        most = [sign * targets[:, 0] for sign in (1, -1)]
    extra = rows[0].shape[1] - 4
    found = linprog(
        np.concatenate([costs, np.full(extra, 1 / m)]),
        A_ub=np.vstack(rows),
        b_ub=np.concatenate(most),
        bounds=[(low, high)] * 4 + [(0, None)] * extra,
    )
    return float(found.fun)


@DTYPES
@pytest.mark.parametrize("name", KINKS)
def test_losses_with_kinks_are_solved_to_the_tolerance(name: str, dtype: torch.dtype) -> None:
    constraint = sorted(BOXES)[sorted(KINKS).index(name) % 2]
    problem = kinked(KINKS[name], dtype)
    least = by_linear_programming(problem, KINKS[name], *BOXES[constraint])
    optimum = fedfw.solve(problem, constraint, tol=1e-3, max_steps=600)
    at = 1e-6  # smooth absolute losses are beta / 2 below the absolute
    assert optimum.stopped is None
    assert optimum.uncertainty <= 1e-3
    assert optimum.lower_bound <= least + at
    assert least <= optimum.value + at
    assert optimum.value == pytest.approx(
        problem.value_and_gradient(optimum.x, exact=True)[0], rel=1e-12
    )


@pytest.mark.parametrize("constraint", ["l1:1.5", "l2:1", "birkhoff"])
def test_kinks_on_other_sets_and_with_other_terms(constraint: str) -> None:
    if constraint == "birkhoff":
        cells = torch.cartesian_prod(torch.arange(3), torch.arange(3))
        matrix = fedfw.problems.completion.MatrixCompletion(3, 3).double()
        data = (cells, torch.eye(3, dtype=torch.float64).flatten())
        problem = fedfw.Problem(matrix, torch.nn.L1Loss(), [data])
    else:
        problem = kinked(torch.nn.L1Loss(), torch.float64, l2=0.1, weights=[3, 1, 2])
    optimum = fedfw.solve(problem, constraint, tol=1e-3, max_steps=1500)
    assert optimum.uncertainty <= 1e-3
    D = problem.bind(constraint)
    for seed in range(30):  # no point of the set is below the bound
        noise = torch.randn(
            len(problem.start), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        for scale in (0.0, 1e-3, 1.0):
            assert (
                problem.value(D.project(optimum.x.flatten() + scale * noise))
                >= optimum.lower_bound - 1e-12
            )


@DTYPES
@pytest.mark.parametrize("name", KINKS)
def test_smoothed_losses_are_just_below(name: str, dtype: torch.dtype) -> None:
    problem = kinked(KINKS[name], dtype, l2=0.2)
    rounding = 50 * torch.finfo(dtype).eps
    for width in (1e-3, 0.3, 5.0):
        smooth = problem.smoothed(width)
        for seed in range(6):
            draw = torch.Generator().manual_seed(seed)
            x, y = (3 * torch.randn(2, 4, generator=draw, dtype=torch.float64)).to(dtype)
            value, (below, slope), there = (
                problem.value(x),
                smooth.value_and_gradient(x),
                smooth.value(y),
            )
            assert below - rounding <= value <= below + width / 2 + rounding
            assert there >= below + float((slope * (y - x)).sum()) - rounding * 100  # convex
    assert problem.smoothed(1e-8) is None or name != "smooth absolute, beta 1e-7"


def test_smooth_losses_have_nothing_to_be_smoothed() -> None:
    for loss in (torch.nn.MSELoss(), torch.nn.HuberLoss(), torch.nn.SmoothL1Loss()):
        assert kinked(loss, torch.float64).smoothed(0.5) is None
    assert Quadratics.on("l1").problem.smoothed(1.0) is None


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
