"""No model outside of its set leaves a run: simulations and the central solver; deployments in test_faults.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.rounds.feasibility import ROUNDING, final_model, validate_final
from fedfw.sets.base import ConstraintSet, Shape

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def problem(dtype: torch.dtype, p: int = 16, **known: Any) -> fedfw.Problem:
    """Four quadratics whose minimisers are different points."""
    random = torch.Generator().manual_seed(0)
    targets = torch.randn(4, p, generator=random, dtype=torch.float64).to(dtype)
    losses: list[Callable[[Tensor], Tensor]] = [lambda x, t=t: ((x - t) ** 2).sum() for t in targets]  # type: ignore[misc]
    return fedfw.Problem.from_losses(losses, torch.zeros(p, dtype=dtype), convex=True, **known)


class Outside(fedfw.L2Ball):
    """A ball whose projection forgets the radius."""

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return 1.5 * super()._project(x, shape)


class Missing(fedfw.L2Ball):
    """A ball whose oracle answers with points outside, and which has no projection."""

    _project = ConstraintSet._project

    def _lmo(self, g: Tensor, shape: Shape, request: Any) -> fedfw.Atom:
        return fedfw.L2Ball(2 * self.r)._lmo(g, shape, request)


@BOTH
@pytest.mark.parametrize(
    ("constraint", "lr"),
    [
        (fedfw.KSparse(2, 1e-6), 1e11),
        (fedfw.KSparse(2, 1.0), 1e17),
        (fedfw.Hypersimplex(3), 1e17),
        (fedfw.Simplex(1.0), 1e30),
        (fedfw.L2Ball(1.0), 1e30),
        (fedfw.GroupBall(1.0, torch.arange(16) // 4), 1e30),
        (fedfw.PartialIsometry(2, 1.0), 1e20),
        (fedfw.Birkhoff(), 1e20),
        (fedfw.Product({"x": fedfw.PartialIsometry(2, 1e-6)}), 1e20),
    ],
    ids=repr,
)
@pytest.mark.parametrize("method", [fedfw.FedPGD, fedfw.FedAvg])
def test_huge_steps_end_inside(method: type[fedfw.Algorithm], constraint: Any, lr: float, dtype: torch.dtype) -> None:
    flat = problem(dtype)
    if getattr(constraint, "needs_matrix", True):
        losses = [lambda x, f=f: f(x.reshape(-1)) for f in flat.losses.functions]  # type: ignore[attr-defined]
        flat = fedfw.Problem.from_losses(losses, torch.zeros(4, 4, dtype=dtype), convex=True)
    bound = flat.bind(constraint)
    run = fedfw.simulate(flat, method(constraint, lr=lr), rounds=3)
    assert bound.contains(run.x.flatten())
    assert bound.contains(run.feasible.flatten())
    assert [record.distance for record in run.history] == [0.0] * 3


@BOTH
@pytest.mark.parametrize(
    "algorithm",
    [fedfw.FedPGD(Outside(1.0), lr=0.1), fedfw.FedFW(Missing(1.0)), fedfw.FrankWolfe(Missing(1.0))],
    ids=lambda algorithm: f"{algorithm.name} on {algorithm.constraint!r}",
)
def test_a_run_that_ends_outside_returns_nothing_and_writes_no_model(
    algorithm: fedfw.Algorithm, dtype: torch.dtype, tmp_path: Path
) -> None:
    with pytest.raises(fedfw.InfeasibleError, match=r"final model lies outside of .*\(r=1.0\): by 0\.[1-9]"):
        fedfw.simulate(problem(dtype), algorithm, rounds=30, out=tmp_path / "run")
    assert not list((tmp_path / "run").glob("model*"))


@BOTH
def test_the_solver_raises_where_its_point_is_outside(dtype: torch.dtype) -> None:
    for constraint in (Outside(1.0), Missing(1.0)):
        with pytest.raises(fedfw.InfeasibleError, match="final model lies outside"):
            fedfw.solve(problem(dtype), constraint, max_steps=30)
    assert fedfw.L2Ball(1.0).contains(fedfw.solve(problem(dtype), fedfw.L2Ball(1.0)).x)


def test_a_grid_search_goes_on_where_a_point_of_the_grid_ends_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where losses are not finite: that point is no result."""
    project = fedfw.L2Ball._project

    def only_near(self: fedfw.L2Ball, x: Tensor, shape: Shape) -> Tensor:
        factor = 1.5 if float(x.abs().max()) > 100 else 1.0
        return factor * project(self, x, shape)

    random = torch.Generator().manual_seed(0)
    clients = [(torch.randn(20, 3, generator=random), torch.randn(20, 1, generator=random)) for _ in range(2)]
    regression = fedfw.Problem(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, clients, test=clients[0])
    monkeypatch.setattr(fedfw.L2Ball, "_project", only_near)
    found = fedfw.tune(regression, fedfw.FedPGD(fedfw.L2Ball(1.0)), rounds=4, grid={"lr": [0.01, 1e5]})
    assert found.best.algorithm.lr == 0.01  # type: ignore[attr-defined]


@BOTH
def test_relaxed_runs_return_a_model_inside_although_xbar_is_outside(dtype: torch.dtype) -> None:
    small, large = fedfw.L2Ball(1.0), fedfw.L2Ball(30.0)
    algorithm = fedfw.FedFW(small, penalty=0.01)
    run = fedfw.simulate(problem(dtype), algorithm, rounds=30, relax={0: large, 1: large, 2: large})
    assert not small.contains(run.x)
    assert small.contains(run.feasible)


@BOTH
@pytest.mark.parametrize(
    "constraint",
    [fedfw.L1Ball(1.0), fedfw.Simplex(2.0), fedfw.NuclearBall(1.0).bind({"w": (2, 3)}), fedfw.L2Ball(0.5)],
    ids=repr,
)
def test_what_rounding_moves_out_is_moved_back_and_more_is_refused(
    constraint: ConstraintSet, dtype: torch.dtype
) -> None:
    inside = constraint.project(torch.full((6,), 5.0, dtype=dtype))
    assert final_model(constraint, inside) is inside
    drifted = inside * (1 + ROUNDING[torch.float32] / 2)
    assert not constraint.contains(drifted)
    if dtype is torch.float32:
        moved = final_model(constraint, drifted)
        assert constraint.contains(moved)
        assert float((moved - inside).abs().max()) <= 1e-3
    else:
        with pytest.raises(fedfw.InfeasibleError, match=r"by 0\.0005 of the set's size"):
            final_model(constraint, drifted)
    with pytest.raises(fedfw.InfeasibleError, match=r"by 0\.01 of the set's size, with entries up to"):
        validate_final(constraint, inside * 1.01)


@BOTH
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_final_point_that_is_not_finite_is_refused(bad: float, dtype: torch.dtype) -> None:
    with pytest.raises(fedfw.InfeasibleError, match="NaN or an infinity"):
        validate_final(fedfw.L2Ball(1.0), torch.tensor([0.1, bad], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("constraint", [fedfw.L1Ball(1.0), fedfw.L2Ball(0.3), fedfw.LinfBall(0.1)], ids=repr)
def test_runs_in_16_bits_return_models_inside(constraint: ConstraintSet, dtype: torch.dtype) -> None:
    run = fedfw.simulate(problem(dtype, 6), fedfw.FedFW(constraint), rounds=100)
    assert run.feasible.dtype == dtype
    assert constraint.contains(run.feasible)
