"""Steps from curvature: what clients tell, what the server makes of it, and where it is not used."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.algorithms import pacing
from fedfw.algorithms.base import Setting

BALL = fedfw.L2Ball(5.0)
BAD = [math.nan, math.inf, -math.inf, -1.0, -1e30, 0.0, 1e-30, 1e30]
PACED = {
    "FedFW": fedfw.FedFW(fedfw.L1Ball(5.0), schedule="curvature"),
    "FedFW+": fedfw.FedFWPlus(BALL, momentum=0.9, schedule="curvature"),
    "anchored": fedfw.FedFWAnchored(
        fedfw.L1Ball(5.0), anchor_every=4, gradient_at="own", penalty=0.0, schedule="curvature"
    ),
    "Frank-Wolfe": fedfw.FrankWolfe(BALL, momentum=0.9, schedule="curvature"),
}


@cache
def digits() -> fedfw.Problem:
    return fedfw.load_problem("digits", clients=5)


@cache
def optimum_on(constraint: fedfw.ConstraintSet) -> fedfw.solving.Optimum:
    return fedfw.solve(digits(), constraint, tol=1e-4)


@pytest.mark.parametrize("gap", BAD)
@pytest.mark.parametrize("curvature", BAD)
def test_no_number_takes_the_step_out_of_its_range(gap: float, curvature: float) -> None:
    told, cap = torch.tensor([gap, curvature], dtype=torch.float64), 0.2
    for before in (0.0, 1e-20, 1.0, 1e20):
        q = pacing.averaged(torch.tensor(before, dtype=torch.float64), told, 0.9)
        assert math.isfinite(float(q))
        assert float(q) >= 0
        assert float(q) <= max(before * pacing.LARGEST_JUMP, 1e30 if before == 0 else 0.0)
        eta = float(pacing.step_size(q, told, cap, 8.0, 0.01))
        assert pacing.LEAST * cap <= eta <= cap


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_curvature_of_a_quadratic(dtype: torch.dtype) -> None:
    """From two gradients of f_i = (x - c)' A (x - c) / 2 comes <A d, d> itself, whatever the step size was."""
    A = torch.diag(torch.tensor([1.0, 4.0, 9.0], dtype=dtype))
    x, s = torch.tensor([[1.0, 2.0, 3.0]], dtype=dtype), torch.tensor([[0.0, -1.0, 1.0]], dtype=dtype)
    eta, lam, a = 0.125, 0.5, x @ A
    after = (1 - eta) * x + eta * s
    state = {"x": after} | pacing.remember(x, after, a, eta)
    g = after @ A
    atom = fedfw.L2Ball(2.0).lmo(g, batch=True)
    gap, curvature = pacing.tell(state, g, g, atom, lam)[0].tolist()
    d = (s - x)[0]
    assert curvature == pytest.approx(float(d @ A @ d + lam * d @ d), rel=1e-5)
    assert gap == pytest.approx(float((g * (after - atom.dense())).sum()), rel=1e-5)
    assert pacing.tell({"x": after} | pacing.begin(x), g, g, atom, lam).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("name", PACED)
@pytest.mark.parametrize("options", [{}, {"participation": 0.5}, {"local_steps": 3}], ids=["plain", "absent", "local"])
def test_steps_are_short_enough_and_the_bound_holds(name: str, options: dict[str, Any]) -> None:
    algorithm, problem = PACED[name], digits()
    if name == "Frank-Wolfe" and options:
        return
    # A bound that is wrong in any round shows in all later ones: it is evaluated in each, where nobody is absent.
    run = fedfw.simulate(problem, algorithm, rounds=40, eval_every=5 if options else 1, **options)
    p, K = options.get("participation", 1.0), options.get("local_steps", 1)
    for record in run.history:
        longest = 2 / (p * (record.round - 1) * K + 2)
        assert record.eta is None or pacing.LEAST * longest <= record.eta <= longest
    optimum = optimum_on(algorithm.constraint)
    assert run.lower_bound is not None
    assert run.lower_bound <= optimum.value * (1 + 1e-6)
    assert run.history[-1].loss is not None
    assert run.history[-1].loss - optimum.value < 0.6 * (optimum.start_value - optimum.value)


def test_much_better_than_the_theory_on_a_badly_conditioned_problem() -> None:
    """Quadratics of condition 1,000 whose optimum lies inside of the ball."""
    scales = torch.logspace(0, -3, 12, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 12, generator=generator, dtype=torch.float64) * 0.5

    def loss(centre: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: ((x - centre) ** 2 * scales).sum() / 2

    start = torch.zeros(12, dtype=torch.float64)
    problem = fedfw.Problem.from_losses([loss(centre) for centre in centres], start, convex=True)
    ends = {}
    for schedule in ("convex", "curvature"):
        for algorithm in (fedfw.FedFWPlus(BALL, schedule=schedule), fedfw.FrankWolfe(BALL, schedule=schedule)):
            run = fedfw.simulate(problem, algorithm, rounds=100, eval_every=100)
            ends[algorithm.name, schedule] = run.history[-1].loss or 0.0
    least = float(((centres - centres.mean(0)) ** 2 * scales).sum(1).mean() / 2)
    for name in ("fedfw+", "frank-wolfe"):
        assert ends[name, "curvature"] - least < 0.5 * (ends[name, "convex"] - least)


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("name", PACED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_run_goes_on_to_the_same_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    problem, algorithm = fedfw.testing.quadratics(5, 8, condition=100.0, dtype=dtype), PACED[name]
    whole = fedfw.simulate(problem, algorithm, rounds=24, eval_every=4)
    fedfw.simulate(problem, algorithm, rounds=13, eval_every=4, out=tmp_path / "run")
    resumed = fedfw.simulate(problem, algorithm, rounds=24, eval_every=4, out=tmp_path / "run", resume=True)
    assert torch.equal(whole.x, resumed.x)
    assert [record.eta for record in whole.history] == [record.eta for record in resumed.history]


def test_what_the_numbers_weigh() -> None:
    """Two float32 numbers up, in a frame, and one float64 number down, a client and round."""
    D = fedfw.L2Ball(5.0)
    algorithms = (fedfw.FedFW(D, schedule=schedule) for schedule in ("convex", "curvature"))
    plain, paced = (fedfw.simulate(digits(), algorithm, rounds=1).history[0] for algorithm in algorithms)
    assert 8 <= (paced.bytes_up - plain.bytes_up) / 5 <= 16
    assert paced.bytes_down - plain.bytes_down == 5 * 8


SETTING = Setting(n=5, constraint=BALL, shape=(4,), convex=True)


@pytest.mark.parametrize(
    ("changed", "steps"),
    [
        ({}, "curvature"),
        ({"p": 0.5}, "curvature"),
        ({"tells": False}, "linear-decay:0.02"),
        ({"tells": False, "p": 0.5, "rounds": 50, "local_steps": 2}, "linear-decay:0.04"),
        ({"tells": False, "constraint": fedfw.L1Ball(1.0)}, None),  # sparse atoms: 2/(t+1) is as good
        ({"whole": False}, None),
        ({"convex": None}, None),
    ],
)
def test_what_auto_is(changed: dict[str, Any], steps: str | None) -> None:
    resolved = fedfw.FedFWPlus(BALL, schedule="auto").resolved(replace(SETTING, **changed))
    assert resolved.schedule == steps


def test_what_auto_is_elsewhere() -> None:
    network = replace(SETTING, convex=False)
    assert fedfw.FedFWPlus(BALL, schedule="auto").resolved(network) == fedfw.FedFWPlus(BALL).resolved(network)
    assert fedfw.FedLMO(BALL, schedule="auto").resolved(SETTING) == fedfw.FedLMO(BALL).resolved(SETTING)
    # Gradients go to the server in any case, but those of other clients would look like curvature.
    assert fedfw.FrankWolfe(BALL, schedule="auto").resolved(replace(SETTING, tells=False)).schedule == "curvature"
    assert fedfw.FrankWolfe(BALL, schedule="auto").resolved(replace(SETTING, p=0.5)).schedule is None
    assert fedfw.FedFWAnchored(BALL, schedule="auto", anchor_every=1).resolved(SETTING).schedule == "linear-decay:0.02"


def test_refusals() -> None:
    with pytest.raises(ValueError, match="naive takes no steps from curvature"):
        fedfw.NaiveFW(BALL, schedule="curvature")
    with pytest.raises(ValueError, match="expected no minibatches, anchors"):
        fedfw.simulate(digits(), PACED["FedFW"], rounds=2, batch_size=8)
    with pytest.raises(ValueError, match="everybody present where the server takes the step"):
        fedfw.simulate(digits(), PACED["Frank-Wolfe"], rounds=2, participation=0.5)
    with pytest.raises(ValueError, match="anchors more than a round apart"):
        fedfw.simulate(digits(), replace(PACED["anchored"], anchor_every=1), rounds=2)
    with pytest.raises(ValueError, match="which a private run must not reveal"):
        fedfw.simulate(digits(), PACED["FedFW"], rounds=2, privacy="eps=8,delta=1e-3,clip=1")


def test_a_private_run_of_auto_tells_nothing() -> None:
    run = fedfw.simulate(
        digits(), fedfw.FedFW(fedfw.L1Ball(5.0), schedule="auto"), rounds=3, privacy="eps=8,delta=1e-3,clip=1"
    )
    assert not run.algorithm.tells
    assert [record.eta for record in run.history] == pytest.approx([1.0, 2 / 3, 0.5])


@pytest.mark.parametrize("algorithm", [fedfw.FedFW, fedfw.FedFWPlus, fedfw.FrankWolfe])
def test_schedules_are_in_the_grids(algorithm: type[fedfw.FedFW]) -> None:
    for changed in ({}, {"convex": False}, {"tells": False}):
        grid = algorithm.grid(replace(SETTING, **changed))
        assert ("auto" in grid["schedule"]) == (not changed)
        assert math.prod(map(len, grid.values())) <= 12


@pytest.mark.parametrize("name", ["FedFW", "FedFW+", "anchored"])
def test_algorithms_pass_the_check_for_algorithms(name: str) -> None:
    fedfw.testing.check_algorithm(PACED[name])
