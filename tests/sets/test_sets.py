"""Rules that are particular to some sets: construction, models, enclosing sets, names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import nn

import fedfw
from fedfw.atoms import Dense, ReadAtom, SignVector
from fedfw.atoms.floats import round_inside
from fedfw.linalg.selection import row_norms, unit_rows
from fedfw.sets.base import ConstraintSet, Request, Shape
from fedfw.testing import check_constraint


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fedfw.L1Ball(0.0), "r = 0.0, expected a positive"),
        (lambda: fedfw.L2Ball(math.nan), "r = nan"),
        (lambda: fedfw.LinfBall(-1), "r = -1"),
        (lambda: fedfw.Box(1.0, -1.0), "lo=1.0, hi=-1.0"),
        (lambda: fedfw.Box(torch.zeros(3), torch.ones(4)), "3 entries and hi 4"),
        (lambda: fedfw.KSparse(0, 1.0), "k = 0, expected a whole number"),
        (lambda: fedfw.KSparse(2.5, 1.0), "k = 2.5"),  # type: ignore[arg-type]
        (lambda: fedfw.GroupBall(1.0, "diagonals"), "groups='diagonals'"),
        (lambda: fedfw.GroupBall(1.0, torch.tensor([0, 2])), "some left out"),
        (lambda: fedfw.Hull(torch.zeros(0, 3)), "expected finite points"),
        (lambda: fedfw.Polytope(torch.eye(2), torch.ones(2)), "unbounded"),
        (lambda: fedfw.Polytope(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.ones(2)), "unbounded"),
        (lambda: fedfw.Polytope(torch.tensor([[1.0], [-1.0]]), torch.tensor([-1.0, -1.0])), "empty"),
        (lambda: fedfw.Polytope(torch.eye(2), torch.ones(3)), "expected \\(m, p\\) and \\(m,\\)"),
        (lambda: fedfw.Product({}), "at least one"),
        (lambda: fedfw.NuclearBall(1.0).lmo(torch.zeros(3)), "needs a matrix"),
        (lambda: fedfw.Birkhoff().lmo(torch.zeros(3, 4)), "square"),
        (lambda: fedfw.Hypersimplex(5).lmo(torch.zeros(4)), "empty"),
        (lambda: fedfw.L1Ball(1.0).lmo(torch.zeros(0)), "empty tensor"),
        (lambda: fedfw.L1Ball(1.0).lmo(torch.zeros(3), precision=torch.int8), "precision"),
    ],
)
def test_bad_values_are_refused_where_they_enter(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]


def test_integer_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match=r"floating-point tensor, got torch\.int64"):
        fedfw.L1Ball(1.0).lmo(torch.arange(3))


def test_ties_go_to_the_lowest_index_one_coordinate() -> None:
    g = torch.tensor([1.0, -2.0, 2.0, 2.0])
    assert fedfw.L1Ball(3.0).lmo(g).dense().tolist() == [0, 3, 0, 0]
    assert fedfw.Simplex(3.0).lmo(torch.tensor([2.0, 1.0, 1.0])).dense().tolist() == [0, 3, 0]
    assert fedfw.KSparse(2, 1.0).lmo(g).dense().tolist() == [0, 1, -1, 0]
    assert fedfw.Hypersimplex(2).lmo(torch.zeros(4)).dense().tolist() == [1, 1, 0, 0]


def test_flat_polytopes_work() -> None:
    """Equalities as pairs of inequalities leave no interior."""
    row = torch.ones(1, 3, dtype=torch.float64)
    A = torch.cat([row, -row, -torch.eye(3, dtype=torch.float64)])
    D = fedfw.Polytope(A, torch.tensor([1.0, -1.0, 0, 0, 0], dtype=torch.float64))
    g = torch.tensor([3.0, 1.0, 2.0])
    assert torch.allclose(D.lmo(g).dense(), torch.tensor([0.0, 1.0, 0.0]))
    v = torch.tensor([2.0, 0.3, -1.0], dtype=torch.float64)
    assert torch.allclose(D.project(v), fedfw.Simplex(1.0).project(v), atol=1e-9)


def test_projection_on_the_birkhoff_polytope_agrees_with_the_inequalities() -> None:
    m = 3
    sums = np.vstack([np.kron(np.eye(m), np.ones(m)), np.kron(np.ones(m), np.eye(m))])
    A = torch.from_numpy(np.vstack([sums, -sums, -np.eye(m * m)]))
    b = torch.from_numpy(np.concatenate([np.ones(2 * m), -np.ones(2 * m), np.zeros(m * m)]))
    D = fedfw.Polytope(A, b)
    for seed in range(5):
        v = 2 * torch.randn(m, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        expected = D.project(v.flatten()).reshape(m, m)
        assert torch.allclose(fedfw.Birkhoff().project(v), expected, atol=1e-7)


@dataclass(frozen=True, eq=False)
class Ellipsoid(ConstraintSet):
    """The set of CONTRIBUTING.md, without a projection: {x: ||x / axes||_2 <= 1}."""

    axes: torch.Tensor

    def _lmo(self, g: torch.Tensor, shape: Shape, request: Request) -> fedfw.Atom:
        unit, norms = unit_rows(self.axes * g)
        return Dense(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=-norms,
            values=round_inside(-self.axes * unit, request.precision),
        )

    def _violation(self, x: torch.Tensor, shape: Shape) -> torch.Tensor:
        return row_norms(x / self.axes) - 1

    def readers(self, shape: Shape) -> Mapping[type[fedfw.Atom], ReadAtom]:
        return {Dense: partial(Dense.read, shape=shape, scale=1.0)}

    def diameter(self, shape: Shape) -> float:
        return 2 * float(self.axes.max())


ELLIPSOID = Ellipsoid(torch.tensor([1.0, 3.0, 0.5, 2.0]))


def test_a_set_of_ones_own_passes_the_public_check_and_wrong_ones_do_not() -> None:
    check_constraint(ELLIPSOID, (4,), reference=lambda g: -float((ELLIPSOID.axes * g).norm()))

    class Large(Ellipsoid):
        def _lmo(self, g: torch.Tensor, shape: Shape, request: Request) -> fedfw.Atom:
            return fedfw.L2Ball(3.0)._lmo(g, shape, request)

    with pytest.raises(AssertionError, match="outside"):
        check_constraint(Large(ELLIPSOID.axes), (4,))

    class Timid(Ellipsoid):
        def _lmo(self, g: torch.Tensor, shape: Shape, request: Request) -> fedfw.Atom:
            return fedfw.L2Ball(0.5)._lmo(g, shape, request)

    with pytest.raises(AssertionError):
        check_constraint(Timid(ELLIPSOID.axes), (4,))


def test_a_set_without_projection_says_so() -> None:
    with pytest.raises(fedfw.NoProjectionError, match="no projection for this set"):
        ELLIPSOID.project(torch.ones(4))
    assert not ELLIPSOID.has_projection
    assert fedfw.enclosing(ELLIPSOID, "l2", (4,)).contains(3 * torch.eye(4)[1])


class TestModels:
    """Sets on all the parameters of a module."""

    def test_vector_set_acts_on_the_flat_vector(self) -> None:
        D = fedfw.L1Ball(2.0).bind(nn.Linear(4, 3))
        assert int((D.lmo(torch.randn(15)).dense() != 0).sum()) == 1

    def test_matrix_set_on_a_linear_layer_acts_on_weights_and_bias_together(self) -> None:
        layer = nn.Linear(4, 3)
        D = fedfw.NuclearBall(2.0).bind(layer)
        W, b = torch.randn(3, 4), torch.randn(3)
        s = D.lmo(torch.cat([W.flatten(), b])).dense()
        joined = fedfw.NuclearBall(2.0).lmo(torch.cat([W, b[:, None]], 1)).dense()
        assert torch.allclose(s[:12].reshape(3, 4), joined[:, :4], atol=1e-6)
        assert torch.allclose(s[12:], joined[:, 4], atol=1e-6)

    def test_matrix_set_on_other_models_must_be_given_per_parameter(self) -> None:
        network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        with pytest.raises(ValueError, match="a set for each parameter"):
            fedfw.NuclearBall(2.0).bind(network)
        with pytest.raises(ValueError, match=r"'0\.bias'.*needs a matrix"):
            fedfw.Product({"*": fedfw.NuclearBall(2.0)}).bind(network)

    def test_wildcards_first_match_wins_and_kernels_are_matrices(self) -> None:
        network = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Linear(4, 3))
        D = fedfw.Product({"0.weight": fedfw.SpectralBall(1.0), "*.bias": fedfw.LinfBall(1.0), "*": fedfw.L2Ball(2.0)})
        bound = D.bind(network)
        assert bound.parts == (fedfw.SpectralBall(1.0), fedfw.LinfBall(1.0), fedfw.L2Ball(2.0), fedfw.LinfBall(1.0))
        s = bound.lmo(torch.randn(5 * 18 + 5 + 12 + 3)).dense(torch.float64)
        kernel = s[:90].reshape(5, 18)
        assert torch.allclose(torch.linalg.svdvals(kernel), torch.ones(5, dtype=torch.float64), atol=1e-4)

    def test_names_that_fit_nothing_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"no parameter is left for wieght .*there are weight, bias"):
            fedfw.Product({"wieght": fedfw.L1Ball(1.0), "*": fedfw.L1Ball(1.0)}).bind(nn.Linear(2, 2))
        with pytest.raises(ValueError, match="no set for parameter 'bias'"):
            fedfw.Product({"weight": fedfw.L1Ball(1.0)}).bind(nn.Linear(2, 2))


@cache
def example_and_atoms(name: str) -> tuple[ConstraintSet, torch.Tensor]:
    """A set of matrices (6, 6) and 60 of its extreme points."""
    shape = (6, 6)
    D = fedfw.SETS[name].example(shape)
    G = torch.randn(60, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    G[30:] = G[30:].sign()
    G[:10] *= (torch.rand(10, 6, 6, generator=torch.Generator().manual_seed(1)) < 0.1).double()
    return D, D.lmo(G, batch=True).dense(torch.float64)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf", "spectral", "nuclear"])
@pytest.mark.parametrize("name", fedfw.SETS)
def test_enclosing_sets_enclose(name: str, norm: str) -> None:
    D, atoms = example_and_atoms(name)
    around = fedfw.enclosing(D, norm, (6, 6))
    assert bool(around.contains(atoms, batch=True).all())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("constraint", "norm", "radius"),
    [
        (fedfw.L1Ball(3.0), "l2", 3.0),
        (fedfw.L1Ball(3.0), "linf", 3.0),
        (fedfw.KSparse(4, 2.0), "l2", 4.0),
        (fedfw.KSparse(4, 2.0), "l1", 8.0),
        (fedfw.PartialIsometry(4, 2.0), "l2", 4.0),
        (fedfw.NuclearBall(3.0), "spectral", 3.0),
        (fedfw.NuclearBall(3.0), "l2", 3.0),
    ],
)
def test_enclosing_radius_is_the_least_one(constraint: ConstraintSet, norm: str, radius: float) -> None:
    around = fedfw.enclosing(constraint, norm)
    assert around.r == pytest.approx(radius)  # type: ignore[attr-defined]


def test_enclosing_asks_for_a_shape_where_it_matters() -> None:
    with pytest.raises(ValueError, match="depends on the shape"):
        fedfw.enclosing(fedfw.L2Ball(1.0), "l1")
    assert fedfw.enclosing(fedfw.L2Ball(1.0), "l1", (16,)) == fedfw.L1Ball(4.0)
    with pytest.raises(ValueError, match="unknown norm 'l3'"):
        fedfw.enclosing(fedfw.L2Ball(1.0), "l3")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("l1:10", fedfw.L1Ball(10)),
        ("ksparse:k=79,r=1", fedfw.KSparse(79, 1)),
        ("ksparse:79", fedfw.KSparse(79)),
        ("box:-1,2.5", fedfw.Box(-1, 2.5)),
        ("group:r=3,groups=columns", fedfw.GroupBall(3, "columns")),
        ("birkhoff", fedfw.Birkhoff()),
        ("L1:10", fedfw.L1Ball(10)),
        ("KSparse:k=2,r=3", fedfw.KSparse(2, 3)),
    ],
)
def test_sets_by_name(text: str, expected: ConstraintSet) -> None:
    assert fedfw.parse_set(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l3:1", "unknown constraint set 'l3', expected one of l1, l2"),
        ("l1", "also needs r"),
        ("spectra:1", r"unknown constraint set 'spectra' \(did you mean 'spectral'\?\)"),
        ("l1:1,2", "cannot place '2'"),
        ("l1:radius=3", "expected l1:r="),
        ("hull:3", "built from arrays"),
        ("l1:x", "r = 'x', expected a positive"),
    ],
)
def test_bad_names_are_refused_with_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fedfw.parse_set(text)


def test_texts_stand_for_sets_wherever_sets_are_wanted() -> None:
    problem = fedfw.testing.two_quadratics()
    assert fedfw.solve(problem, "box:-1,1").value == fedfw.solve(problem, fedfw.Box(-1, 1)).value
    run = fedfw.simulate(problem, fedfw.FedFW("box:-1,1", penalty=0.3), rounds=3, relax={1: "box:-2,2"})
    algorithm = fedfw.FedFW(fedfw.Box(-1, 1), penalty=0.3)
    assert torch.equal(run.x, fedfw.simulate(problem, algorithm, rounds=3, relax={1: fedfw.Box(-2, 2)}).x)
    model = torch.nn.Linear(3, 2)
    assert fedfw.Product({"weight": "l1:2", "*": fedfw.L2Ball(1)}).sets["weight"] == fedfw.L1Ball(2)
    fedfw.optim.LMO(model, "l1:0.5")
    assert fedfw.L1Ball(0.5).bind(model).contains(torch.cat([p.detach().flatten() for p in model.parameters()]), 1e-5)
    with pytest.raises(TypeError, match="expected a constraint set or a Product, or text such as 'l1:10'"):
        fedfw.solve(problem, 3)


class TestHardCases:
    """Cases that once went wrong."""

    def test_ksupport_projection_when_exactly_k_entries_saturate(self) -> None:
        D = fedfw.KSupport(2, 1.0)
        w = D.project(torch.tensor([1.0, 0.9, 0.05], dtype=torch.float64))
        assert float(w.norm()) == pytest.approx(1.0)
        V = torch.randn(300, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for k in (2, 3, 5):
            for scale in (1.0, 3.0, 10.0):
                D = fedfw.KSupport(k, 1.0)
                W = D.project(scale * V, batch=True)
                s = D.lmo(W - scale * V, batch=True, precision=torch.float64).dense(torch.float64)
                assert float(((scale * V - W) * (s - W)).sum(1).max()) <= 1e-6 * scale
                assert bool(torch.as_tensor(D.contains(W, batch=True)).all())

    @pytest.mark.parametrize("size", [1e-200, 1e-300, 1e-310, 1e150, 1e300])
    @pytest.mark.parametrize("side", [3, 140])
    def test_spectral_oracles_at_extreme_sizes(self, size: float, side: int) -> None:
        g = torch.randn(side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for D in (fedfw.Spectrahedron(1.0), fedfw.NuclearBall(1.0), fedfw.PartialIsometry(2, 1.0)):
            exact, scaled = D.lmo(g).dot(g), D.lmo(g * size).dot(g)
            assert float(scaled) == pytest.approx(float(exact), rel=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_symmetric_part_is_taken_before_digits_are_lost(self, dtype: torch.dtype) -> None:
        """In float32 the sum 1 + 2^-25 is 1, and the second block would look as good as the first one."""
        g = torch.zeros(4, 4, dtype=dtype)
        g[2, 3], g[3, 2] = 1.0, 2.0**-25
        g[0, 1] = g[1, 0] = 0.5
        atom = fedfw.Spectrahedron(1.0).lmo(g)
        assert float(atom.bound) == pytest.approx(-(1 + 2.0**-25) / 2, abs=1e-12)  # type: ignore[arg-type]
        assert atom.dense()[2, 2] == pytest.approx(0.5, abs=1e-3)

    def test_half_precision_gradients_are_upcast(self) -> None:
        g = torch.randn(140, 140, generator=torch.Generator().manual_seed(0)).bfloat16()
        D = fedfw.Spectrahedron(1.0)
        assert float(D.lmo(g).dot(g)) == pytest.approx(float(D.lmo(g.double()).dot(g)), rel=1e-3)

    def test_polytopes_and_hulls_do_not_depend_on_units(self) -> None:
        A = torch.cat([torch.eye(3), -torch.eye(3)]).double()
        for scale in (1e-10, 1e-5, 1e6):
            D = fedfw.Polytope(A * scale, torch.full((6,), scale, dtype=torch.float64))
            assert torch.allclose(D.project(torch.tensor([3.0, 0.2, -5.0])), torch.tensor([1.0, 0.2, -1.0]))
        small = fedfw.Polytope(A, torch.full((6,), 1e-7, dtype=torch.float64))
        assert not small.contains(torch.full((3,), 1e-6))
        assert not fedfw.Hull(torch.tensor([[1e6], [1e6 + 1]])).contains(torch.tensor([1e6 + 1.9], dtype=torch.float64))

    def test_equal_points_of_a_hull_tie_to_the_first(self) -> None:
        points = torch.randn(50, 785, generator=torch.Generator().manual_seed(0))
        D = fedfw.Hull(torch.cat([points, points]))
        g = torch.randn(100, 785, generator=torch.Generator().manual_seed(1))
        atoms = D.lmo(g, batch=True)
        assert int(atoms.index.max()) < 50  # type: ignore[attr-defined]

    def test_many_small_groups_beside_a_large_one(self) -> None:
        labels = torch.cat([torch.zeros(20_000, dtype=torch.int64), torch.arange(1, 20_001)])
        D = fedfw.GroupBall(1.0, labels)
        g = torch.zeros(40_000)
        g[30_000] = 500.0
        assert int(D.lmo(g).dense().nonzero()[0, 0]) == 30_000

    def test_nan_is_not_inside(self) -> None:
        bad = torch.full((4, 4), math.nan)
        for name in fedfw.SETS:
            assert not fedfw.SETS[name].example((4, 4)).contains(bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_projection_is_never_the_point_itself(dtype: torch.dtype) -> None:
    x = torch.tensor([0.1, 0.2], dtype=dtype)
    fedfw.L2Ball(1.0).project(x).mul_(9)
    assert x.tolist() == pytest.approx([0.1, 0.2])
    assert not fedfw.L2Ball(1.0).project(x.clone().requires_grad_()).requires_grad


def test_balls_of_huge_and_tiny_radius_hold_what_they_hold() -> None:
    far = torch.tensor([1e170, 0.0], dtype=torch.float64)
    assert float(fedfw.L2Ball(1e160).project(far).abs().max()) <= 1e160
    with pytest.raises(fedfw.NonFiniteError):
        fedfw.L2Ball(1e160).project(torch.tensor([float("inf"), 0.0]))
    near = torch.tensor([1e-30, 0.0])
    assert float(fedfw.L2Ball(1e-35).project(near)[0]) == pytest.approx(1e-35, rel=1e-3)


def test_atoms_and_projections_share_nothing_with_the_set_and_lie_in_rows() -> None:
    ball = fedfw.LinfBall(1.0)
    atom = ball.lmo(torch.ones(3))
    assert isinstance(atom, SignVector)
    atom.hi.mul_(5)
    assert ball.project(torch.full((3,), 9.0)).tolist() == [1.0] * 3
    columns = torch.arange(6.0).reshape(2, 3).t() / 100
    for r in (5.0, 0.01):
        assert fedfw.L2Ball(r).project(columns).is_contiguous()
