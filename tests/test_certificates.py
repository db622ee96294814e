"""The certificate: a lower bound that never exceeds the optimum, in any precision and whoever takes
part.
"""

import copy
from functools import lru_cache
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedfw
from fedfw.problems import MatrixCompletion, Problem
from fedfw.problems.quadratics import quadratic_problem, random_quadratics
from fedfw.rounds.setup import Certificate

FLOATS = [torch.float32, torch.float64]
SETS: dict[str, Any] = {
    "box": fedfw.Box(-1.0, 1.0),
    "l1": fedfw.L1Ball(2.0),
    "l2": fedfw.L2Ball(1.5),
    "simplex": fedfw.Simplex(0.3),
    "k-sparse": fedfw.KSparse(3, 0.7),
}


@lru_cache(maxsize=64)
def clients(n: int, p: int, seed: int, alike: bool) -> tuple[Tensor, Tensor]:
    """Quadratics far from the sets, with numbers that float32 holds."""
    A, c = random_quadratics(1 if alike else n, p, 10.0, 1.0, seed)
    if alike:
        A, c = A.repeat(n, 1, 1), c.repeat(n, 1)
    return A.float().double(), (0.3 * c + 3).float().double()


def problem(
    A: Tensor, c: Tensor, dtype: torch.dtype, weights: tuple[float, ...] | None = None
) -> Problem:
    return quadratic_problem(
        A.to(dtype), c.to(dtype), torch.zeros(A.shape[1], dtype=dtype), weights
    )


@lru_cache(maxsize=64)
def optimum(
    name: str, n: int, p: int, seed: int, alike: bool, weights: tuple[float, ...] | None = None
) -> float:
    exact = problem(*clients(n, p, seed, alike), torch.float64, weights)
    return fedfw.solve(exact, SETS[name], tol=1e-13).value


def worst_of(run: fedfw.Run, least: float) -> float:
    """How far the bound ever was above the optimum, relative."""
    bounds = [record.lower_bound for record in run.history if record.lower_bound is not None]
    assert bounds == sorted(bounds)
    return max(bounds, default=-torch.inf) - least


def check(
    name: str, algorithm: Any, dtype: torch.dtype, *, n: int = 6, seed: int = 0, alike: bool = False,
    weights: tuple[float, ...] | None = None, **options: Any,
) -> None:  # fmt: skip
    least = optimum(name, n, 8, seed, alike, weights)
    run = fedfw.simulate(problem(*clients(n, 8, seed, alike), dtype, weights), algorithm, **options)
    allowed = 1e-9 if dtype is torch.float64 else 1e-6
    assert worst_of(run, least) <= allowed * (1 + abs(least))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", SETS)
@given(
    multiple=st.sampled_from([0, 0.1, 1, 10, 100]),
    participation=st.sampled_from([1.0, 0.4, 3]),
    weights=st.sampled_from([None, (0.1, 0.3, 0.05, 0.25, 0.2, 0.1)]),
    method=st.sampled_from(["fedfw", "fedfw+", "fedfw-anchored"]),
    local_steps=st.sampled_from([1, 3]),
    seed=st.integers(0, 5),
)
@settings(max_examples=6)
def test_the_bound_is_never_above_the_optimum(
    name: str, dtype: torch.dtype, multiple: float, participation: float, weights: Any, method: str, local_steps: int,
    seed: int,
) -> None:  # fmt: skip
    algorithm = fedfw.ALGORITHMS[method](SETS[name], penalty=f"auto:{multiple}")
    options = {"rounds": 60, "participation": participation, "local_steps": local_steps}
    check(name, algorithm, dtype, seed=seed, weights=weights, **options)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("multiple", [0, 1, 100])
@pytest.mark.parametrize("method", ["fedfw", "fedfw+"])
@pytest.mark.parametrize("name", SETS)
def test_the_bound_over_ten_thousand_rounds(
    name: str, method: str, multiple: float, participation: float, dtype: torch.dtype
) -> None:
    algorithm = fedfw.ALGORITHMS[method](SETS[name], penalty=f"auto:{multiple}")
    check(name, algorithm, dtype, n=10, rounds=10_000, eval_every=20, participation=participation)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("penalty", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("method", ["fedfw", "fedfw+"])
def test_the_bound_with_large_penalties(
    method: str, penalty: float, alike: bool, dtype: torch.dtype
) -> None:
    algorithm = fedfw.ALGORITHMS[method](SETS["box"], penalty=penalty)
    check("box", algorithm, dtype, alike=alike, rounds=200, eval_every=10)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_bound_in_the_setting_in_which_float32_failed(dtype: torch.dtype) -> None:
    check("box", fedfw.FedFWPlus(SETS["box"]), dtype, n=10, rounds=1000, eval_every=100)


def test_a_tolerance_is_met_when_a_float32_run_stops() -> None:
    n, p = 10, 8
    A, c = clients(n, p, 0, False)
    least = optimum("box", n, p, 0, False)
    tol = 1e-3 * (1 + least)
    run = fedfw.simulate(
        problem(A, c, torch.float32), fedfw.FedFWPlus(SETS["box"]), rounds=1000, tol=tol
    )
    assert "tol" in run.stopped
    assert problem(A, c, torch.float64).value(run.x.double()) - least <= tol


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", ["box", "l1"])
def test_the_mean_and_the_duals_do_not_drift_in_float32(name: str, participation: float) -> None:
    n, p = 10, 8
    means: list[tuple[Tensor, Tensor]] = []
    models: list[tuple[Tensor, Tensor]] = []
    residuals = [torch.zeros(p, dtype=torch.float64)]

    def watch(simulation: Any) -> None:
        held, server = simulation.clients, simulation.server
        models.append((held["x"].mean(0), server.xbar.clone()))
        means.append((held["y"].mean(0), server.state["ybar"].clone()))
        residuals.append(server.down["residual"].clone())

    options = {"rounds": 300, "eval_every": 300, "participation": participation, "callbacks": watch}
    run = fedfw.simulate(
        problem(*clients(n, p, 0, False), torch.float32), fedfw.FedFWPlus(SETS[name]), **options
    )
    mean, xbar = (torch.stack(each) for each in zip(*models, strict=True))
    y, ybar = (torch.stack(each) for each in zip(*means, strict=True))
    assert len(mean) == 300
    # With all clients present the changes of the y_i add up to what rounding took of the models.
    lam = run.algorithm.penalty
    expected = ybar + lam * torch.stack(residuals[:-1]) if participation == 1.0 else ybar
    assert torch.allclose(y, expected, rtol=0.0, atol=1e-12 * (1 + lam))
    assert float(torch.stack(residuals).abs().max()) <= 2.0**-24 * float(xbar.abs().max())
    assert float((mean - xbar).abs().max()) <= 1e-12


# --- losses and gradients in float64 from data in float32 ---


def samples(sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(m, 4, generator=generator), torch.randint(3, (m,), generator=generator))
        for m in sizes
    ]


def completion() -> tuple[Problem, Problem]:
    pairs = [
        (torch.tensor([[0, 1], [2, 0]]), torch.tensor([0.1, 0.2])),
        (torch.tensor([[1, 1]]), torch.tensor([0.3])),
    ]
    wide = [(at, values.double()) for at, values in pairs]
    models = MatrixCompletion(3, 2), MatrixCompletion(3, 2).double()
    return Problem(models[0], nnf.mse_loss, pairs), Problem(models[1], nnf.mse_loss, wide)


def classifiers(kind: str) -> tuple[Problem, Problem]:
    torch.manual_seed(0)
    linear = nn.Linear(4, 3)
    model = linear if kind.startswith("linear") else nn.Sequential(linear)
    l2 = 0.1 if kind.endswith("l2") else 0.0
    data = samples([9, 7, 3])
    wide = [(x.double(), y) for x, y in data]
    narrow = Problem(model, nnf.cross_entropy, data, l2=l2, weights=[1.0, 2.0, 3.0])
    return narrow, Problem(
        copy.deepcopy(model).double(), nnf.cross_entropy, wide, l2=l2, weights=[1.0, 2.0, 3.0]
    )


@pytest.mark.parametrize("kind", ["linear", "linear l2", "module", "completion"])
def test_exact_losses_are_those_of_the_same_problem_in_float64(kind: str) -> None:
    narrow, wide = completion() if kind == "completion" else classifiers(kind)
    x = torch.randn(
        len(narrow.start), generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    for who in ([*range(narrow.n)], [1]):
        rows = torch.tensor(who)
        points = x.expand(len(who), -1)
        got, wanted = (
            narrow.losses.exactly(points, rows),
            wide.losses.value_and_gradient(points, rows, None),
        )
        for one, other in zip(got, wanted, strict=True):
            assert one.dtype is torch.float64
            assert torch.allclose(one, other, rtol=1e-13, atol=1e-14)
    value, gradient = narrow.value_and_gradient(x, exact=True)
    assert value == pytest.approx(wide.value(x), rel=1e-13)
    assert gradient.dtype is torch.float64
    assert narrow.works_in_float64()


def test_functions_that_work_in_float32_only_prove_nothing() -> None:
    matrix = torch.eye(2)
    losses = [lambda x: (matrix @ x).square().sum()] * 2
    stuck = Problem.from_losses(losses, torch.ones(2), convex=True)
    run = fedfw.simulate(stuck, fedfw.FedFW(fedfw.L2Ball(1.0)), rounds=3)
    assert run.certificate is Certificate.ONLY_FLOAT32
    assert run.lower_bound is None
    free = Problem.from_losses(
        [lambda x: (matrix.to(x) @ x).square().sum()] * 2, torch.ones(2), convex=True
    )
    run = fedfw.simulate(free, fedfw.FedFW(fedfw.L2Ball(1.0), momentum=0.0), rounds=3)
    assert run.certificate is Certificate.EVERY_ROUND
    assert run.lower_bound <= 1e-12


# --- weights: in float32 they would be those of another problem ---


def far_away(n: int, dtype: torch.dtype, weights: list[float] | None = None) -> Problem:
    """n clients with (x - 30000)^2: over [-1, 1] the optimum is 29999^2, which is far from zero."""
    inputs, targets = torch.ones(1, 1, dtype=dtype), torch.full((1, 1), 30000.0, dtype=dtype)
    model = nn.Linear(1, 1, bias=False, dtype=dtype)
    nn.init.zeros_(model.weight)
    return Problem(model, nnf.mse_loss, [(inputs, targets)] * n, weights=weights)


FAR_AWAY = 29999.0**2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weights", [None, [0.7, 0.2, 0.1], [1.0, 1.0, 5.0]])
@pytest.mark.parametrize(
    ("algorithm", "participation", "least"),
    [
        # float32 changes where the certificate is made, not more.
        (fedfw.FedFW("l2:1", penalty=1.0), 1.0, 1 - 1e-6),
        (fedfw.FedFWPlus("l2:1", penalty=1.0), 1.0, 1 - 1e-6),
        (fedfw.FedFWAnchored("l2:1"), 1.0, 1 - 1e-6),
        (fedfw.FrankWolfe("l2:1"), 1.0, 1 - 1e-6),
        (fedfw.FedFW("l2:1", penalty=1.0), 0.6, 0.0),
    ],
)
def test_weights_enter_the_bound_in_float64(
    algorithm: Any,
    participation: float,
    least: float,
    weights: list[float] | None,
    dtype: torch.dtype,
) -> None:
    """1/3 in float32 is too large by 3e-8, which is 27 above an optimum of 9e8."""
    options = {"rounds": 60 if participation < 1 else 30, "participation": participation}
    run = fedfw.simulate(far_away(3, dtype, weights), algorithm, **options)
    assert FAR_AWAY * least < run.lower_bound <= FAR_AWAY * (1 + 1e-14)
