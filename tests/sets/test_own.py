"""Sets of one's own: a class with `lmo` and `diameter` alone."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedfw
from fedfw.deployment import DeployedServer, Deployment
from fedfw.sets.base import Shape
from fedfw.testing import check_constraint

from ..deployment.loopback import Loopback, problem_of, small_task

DTYPES = (torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class WeightedSimplex:
    """{x >= 0, <w, x> = r}."""

    w: tuple[float, ...]
    r: float

    def lmo(self, g: Tensor) -> Tensor:
        w = torch.tensor(self.w, dtype=g.dtype)
        j = int((g / w).argmin())
        s = torch.zeros_like(g)
        s[j] = self.r / w[j]
        return s

    def diameter(self, shape: Shape) -> float:
        return math.sqrt(2) * self.r / min(self.w)


class Ellipsoid:
    """{||x / axes||_2 <= 1}."""

    def __init__(self, axes: Tensor) -> None:
        self.axes = axes

    def lmo(self, g: Tensor) -> Tensor:
        scaled = self.axes * g
        return -self.axes * scaled / scaled.norm()

    def diameter(self, shape: Shape) -> float:
        return 2 * float(self.axes.max())


@dataclass(frozen=True)
class Measured(WeightedSimplex):
    """A weighted simplex with a membership test of its own."""

    def violation(self, x: Tensor) -> float:
        w = torch.tensor(self.w, dtype=x.dtype)
        return max(float((w @ x - self.r).abs()), -float(x.min())) / self.r


class Disc:
    """{||x||_2 <= 3}, with a projection."""

    def lmo(self, g: Tensor) -> Tensor:
        return -3 * g / g.norm()

    def diameter(self, shape: Shape) -> float:
        return 6.0

    def project(self, x: Tensor) -> Tensor:
        return x * min(1.0, 3 / max(float(x.norm()), 1e-300))


def simplices(least: int = 2) -> st.SearchStrategy[WeightedSimplex]:
    weights = st.lists(st.floats(0.1, 10), min_size=least, max_size=6).map(tuple)
    return st.builds(WeightedSimplex, weights, st.sampled_from((1e-6, 1.0, 3.7, 1e5)))


@settings(max_examples=8, deadline=None)
@given(simplices())
def test_an_oracle_and_a_diameter_keep_all_promises(simplex: WeightedSimplex) -> None:
    w = torch.tensor(simplex.w, dtype=torch.float64)
    reference = lambda g: simplex.r * float((g / w).min())  # noqa: E731
    check_constraint(simplex, (len(w),), reference=reference, trials=6)


@pytest.mark.parametrize("constraint", [Ellipsoid(torch.tensor([1.0, 3.0, 0.5, 2.0])), Disc()])
def test_round_sets_keep_all_promises(constraint: Any) -> None:
    check_constraint(constraint, (4,), trials=6)
    around = fedfw.enclosing(fedfw.OracleSet(constraint), "l2", (4,))
    assert around.contains(3 * torch.eye(4)[1])


@settings(max_examples=20, deadline=None)
@given(simplices(), st.integers(0, 10**6))
def test_membership_is_that_of_the_definition(simplex: WeightedSimplex, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    D = fedfw.OracleSet(simplex)
    w = torch.tensor(simplex.w, dtype=torch.float64)
    vertices = torch.diag(simplex.r / w)
    shares = torch.rand(3, len(w), generator=generator, dtype=torch.float64)
    inside = (shares / shares.sum(1, keepdim=True)) @ vertices
    size = D.diameter((len(w),))
    normal = w / w.norm()
    assert bool(torch.as_tensor(D.contains(torch.cat([vertices, inside]), batch=True)).all())
    for distance in (3e-6, 1e-3, 10.0):
        for sign in (-1, 1):
            outside = inside + sign * distance * size * normal
            assert not bool(torch.as_tensor(D.contains(outside, batch=True)).any())
            assert bool(torch.as_tensor(D.contains(outside, 1.1 * distance, batch=True)).all())


@pytest.mark.parametrize("factor", [0.5, 1 - 1e-5, 1.0, 1 + 1e-5, 2.0])
def test_points_near_a_curved_surface_are_decided(factor: float) -> None:
    axes = torch.linspace(0.5, 2.0, 100, dtype=torch.float64)
    D = fedfw.OracleSet(Ellipsoid(axes))
    x = torch.randn(4, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    on = x / (x / axes).norm(dim=1, keepdim=True)
    inside = torch.as_tensor(D.contains(factor * on, 1e-6, batch=True))
    if factor != 1 - 1e-5:  # undecided so close below the surface, which may be refused
        assert bool((inside == (factor <= 1)).all())


@pytest.mark.parametrize("requested", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_atoms_have_a_precision_that_keeps_them_inside(
    dtype: torch.dtype, requested: torch.dtype
) -> None:
    D = fedfw.OracleSet(WeightedSimplex((0.3, 1.7, 2.9), 0.7))
    atoms = D.lmo(torch.eye(3, dtype=dtype), batch=True, precision=requested)
    assert atoms.precision == torch.promote_types(requested, torch.float32)
    assert bool(torch.as_tensor(D.contains(atoms.dense(torch.float64), batch=True)).all())


def test_rounds_run_and_a_deployment_has_the_same_bits(tmp_path: Path) -> None:
    simplex = WeightedSimplex((*(1.0 + 0.1 * j for j in range(15)),), 2.0)
    task = small_task(fedfw.FedFWPlus(simplex), rounds=8)
    with torch.no_grad():
        next(task.model.parameters())[0, 0] = 2.0  # a vertex
    loop = Loopback(DeployedServer(task, Deployment(tell_loss=True)), tmp_path)
    loop.greet()
    loop.run(8)
    run = fedfw.simulate(problem_of(task), task.algorithm, rounds=8)
    assert torch.equal(loop.server.xbar, run.x)
    assert run.history[-1].loss < run.history[0].loss
    assert fedfw.OracleSet(simplex).contains(run.x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_optional_methods_are_used(dtype: torch.dtype) -> None:
    measured = fedfw.OracleSet(Measured((1.0, 2.0), 1.0))
    assert measured.contains(torch.tensor([0.5, 0.25], dtype=dtype))
    assert not measured.has_projection
    with pytest.raises(fedfw.NoProjectionError):
        measured.project(torch.ones(2, dtype=dtype))
    disc = fedfw.OracleSet(Disc())
    assert disc.project(torch.tensor([3.0, 4.0], dtype=dtype)).tolist() == pytest.approx([1.8, 2.4])
    product = fedfw.Product({"a": Disc(), "b": fedfw.L1Ball(1.0)}).bind({"a": (2,), "b": (3,)})
    assert product.contains(product.lmo(torch.ones(5, dtype=dtype)).dense(torch.float64))


def test_what_is_not_a_set_is_refused() -> None:
    class Bad(Disc):
        def __init__(self, answer: Any, size: float = 6.0) -> None:
            self.answer, self.size = answer, size

        def lmo(self, g: Tensor) -> Any:
            return self.answer

        def diameter(self, shape: Shape) -> float:
            return self.size

    with pytest.raises(TypeError, match=r"expected .* methods lmo\(g\) and diameter\(shape\)"):
        fedfw.FedFW(object(), penalty=1.0)
    with pytest.raises(TypeError, match="expected an object"):
        fedfw.OracleSet(Disc)
    for answer, message in (
        (torch.ones(3), r"returned a tensor of shape \(3,\), expected a tensor of shape \(2,\)"),
        ([1.0, 2.0], "returned list"),
        (torch.tensor([1.0, math.nan]), "NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            fedfw.OracleSet(Bad(answer)).lmo(torch.ones(2))
    with pytest.raises(ValueError, match=r"diameter.* is inf, expected a finite number"):
        fedfw.OracleSet(Bad(torch.ones(2), math.inf)).diameter((2,))


def test_the_check_names_value_bound_and_dtype() -> None:
    class Worse(Ellipsoid):
        def lmo(self, g: Tensor) -> Tensor:
            return -self.axes * g / g.norm()

    class Narrow(Ellipsoid):
        def diameter(self, shape: Shape) -> float:
            return 0.1

    class Timid(Ellipsoid):
        def lmo(self, g: Tensor) -> Tensor:
            return super().lmo(g) / 2

    axes = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    with pytest.raises(AssertionError):  # answers that lie inside, and are not the least
        check_constraint(Timid(axes), (3,), reference=lambda g: -float((axes * g).norm()))
    numbers = r": [-0-9.e+]+, expected at most [-0-9.e+]+ in torch\.float64"
    for kind, what in (
        (Worse, "lies outside, at a relative distance"),
        (Narrow, "distance of two points"),
    ):
        with pytest.raises(AssertionError, match=what + numbers):
            check_constraint(kind(torch.tensor([1.0, 3.0, 0.5])), (3,))
