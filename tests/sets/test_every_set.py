"""check_constraint on every set, each against an answer found by other means."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

import fedfw
from fedfw.linalg.selection import robust_row_norms
from fedfw.sets.base import ConstraintSet, Shape
from fedfw.testing import check_constraint


def lp(
    A: np.ndarray, b: np.ndarray, equal: tuple[np.ndarray, np.ndarray] | None = None
) -> Callable[[Tensor], float]:
    """min <g, x> over {Ax <= b, equal[0] x = equal[1]} by HiGHS' interior point method."""

    def least(g: Tensor) -> float:
        equality = {} if equal is None else {"A_eq": equal[0], "b_eq": equal[1]}
        answer = linprog(
            g.flatten().numpy(), A_ub=A, b_ub=b, bounds=(None, None), method="highs-ipm", **equality
        )
        assert answer.status == 0
        return float(answer.fun)

    return least


def split_lp(upper: float, total: float) -> Callable[[Tensor], float]:
    """min <g, x> over {sum |x| <= total, |x| <= upper} with x = u - v, u and v >= 0."""

    def least(g: Tensor) -> float:
        c = g.flatten().numpy()
        answer = linprog(
            np.concatenate([c, -c]),
            A_ub=np.ones((1, 2 * len(c))),
            b_ub=[total],
            bounds=(0, upper),
            method="highs",
        )
        return float(answer.fun)

    return least


def positive_lp(
    p: int, total: float, upper: float | None, equality: bool
) -> Callable[[Tensor], float]:
    rows, bounds = np.ones((1, p)), (0, upper)

    def least(g: Tensor) -> float:
        kind = {"A_eq": rows, "b_eq": [total]} if equality else {"A_ub": rows, "b_ub": [total]}
        return float(linprog(g.flatten().numpy(), bounds=bounds, method="highs", **kind).fun)

    return least


def by_enumeration(vertices: list[Tensor]) -> Callable[[Tensor], float]:
    return lambda g: min(float((g * v).sum()) for v in vertices)


def best_support(k: int, r: float) -> Callable[[Tensor], float]:
    """Try every set of k coordinates."""

    def least(g: Tensor) -> float:
        flat = g.flatten()
        return -r * max(
            float(flat[list(c)].norm()) for c in itertools.combinations(range(len(flat)), k)
        )

    return least


def by_groups(r: float, axis: int) -> Callable[[Tensor], float]:
    return lambda g: -r * float(g.norm(dim=axis).max())


def by_sigma(r: float, k: int) -> Callable[[Tensor], float]:
    return lambda g: -r * float(np.linalg.svd(g.flatten(1).numpy(), compute_uv=False)[:k].sum())


@dataclass
class Case:
    """A set, a small shape, an independent answer, and the set with its radius scaled."""

    set: ConstraintSet
    shape: Shape
    reference: Callable[[Tensor], float]
    scaled: Callable[[float], ConstraintSet] | None = None


PERMUTATIONS = [
    torch.eye(4, dtype=torch.float64)[list(q)] for q in itertools.permutations(range(4))
]
POINTS = torch.randn(9, 2, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
GROUPS = torch.tensor([0, 1, 1, 2, 2, 2, 0, 3])
RANDOM_A = torch.randn(14, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
CUT_A = torch.cat([RANDOM_A, torch.eye(5).double(), -torch.eye(5).double()])
CUT_B = torch.cat([torch.ones(14), torch.full((10,), 2.0)]).double()
BOX_LO, BOX_HI = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([1.0, 3.0, 2.5])

CASES = {
    "l1": Case(fedfw.L1Ball(2.5), (3, 4), split_lp(np.inf, 2.5), lambda c: fedfw.L1Ball(2.5 * c)),
    "l2": Case(
        fedfw.L2Ball(0.7),
        (9,),
        lambda g: -0.7 * float(np.linalg.norm(g)),
        lambda c: fedfw.L2Ball(0.7 * c),
    ),
    "linf": Case(
        fedfw.LinfBall(3.0), (2, 5), split_lp(3.0, 1e6), lambda c: fedfw.LinfBall(3.0 * c)
    ),
    "box": Case(
        fedfw.Box(-1.0, 2.0),
        (7,),
        lp(np.vstack([np.eye(7), -np.eye(7)]), np.repeat([2.0, 1.0], 7)),
        lambda c: fedfw.Box(-1.0 * c, 2.0 * c),
    ),
    "box-vectors": Case(
        fedfw.Box(BOX_LO, BOX_HI),
        (3,),
        lp(np.vstack([np.eye(3), -np.eye(3)]), np.concatenate([BOX_HI.numpy(), -BOX_LO.numpy()])),
    ),
    "ksparse": Case(
        fedfw.KSparse(3, 2.0), (3, 4), split_lp(2.0, 6.0), lambda c: fedfw.KSparse(3, 2.0 * c)
    ),
    "ksupport": Case(
        fedfw.KSupport(3, 2.0), (9,), best_support(3, 2.0), lambda c: fedfw.KSupport(3, 2.0 * c)
    ),
    "ksupport-k1": Case(fedfw.KSupport(1, 2.0), (6,), split_lp(np.inf, 2.0)),
    "ksupport-large-k": Case(fedfw.KSupport(99, 2.0), (6,), lambda g: -2.0 * float(g.norm())),
    "group-rows": Case(
        fedfw.GroupBall(2.0, "rows"),
        (4, 3),
        by_groups(2.0, 1),
        lambda c: fedfw.GroupBall(2.0 * c, "rows"),
    ),
    "group-columns": Case(fedfw.GroupBall(2.0, "columns"), (4, 3), by_groups(2.0, 0)),
    "group-index": Case(
        fedfw.GroupBall(2.0, GROUPS),
        (8,),
        lambda g: -2.0 * max(float(g[j == GROUPS].norm()) for j in range(4)),
    ),
    "simplex": Case(
        fedfw.Simplex(2.0), (7,), positive_lp(7, 2.0, None, True), lambda c: fedfw.Simplex(2.0 * c)
    ),
    "capped-simplex": Case(
        fedfw.CappedSimplex(2.0),
        (2, 3),
        positive_lp(6, 2.0, None, False),
        lambda c: fedfw.CappedSimplex(2.0 * c),
    ),
    "hypersimplex": Case(fedfw.Hypersimplex(3), (8,), positive_lp(8, 3, 1, True)),
    "nuclear": Case(
        fedfw.NuclearBall(3.0), (5, 7), by_sigma(3.0, 1), lambda c: fedfw.NuclearBall(3.0 * c)
    ),
    "nuclear-lanczos": Case(fedfw.NuclearBall(3.0), (130, 140), by_sigma(3.0, 1)),
    "nuclear-kernel": Case(fedfw.NuclearBall(3.0), (4, 3, 2, 2), by_sigma(3.0, 1)),
    "spectral": Case(
        fedfw.SpectralBall(2.0), (5, 4), by_sigma(2.0, 4), lambda c: fedfw.SpectralBall(2.0 * c)
    ),
    "partial-isometry": Case(
        fedfw.PartialIsometry(2, 1.5),
        (7, 9),
        by_sigma(1.5, 2),
        lambda c: fedfw.PartialIsometry(2, 1.5 * c),
    ),
    "partial-isometry-dense": Case(fedfw.PartialIsometry(2, 1.5), (3, 3), by_sigma(1.5, 2)),
    "spectrahedron": Case(
        fedfw.Spectrahedron(2.0),
        (5, 5),
        lambda g: 2.0 * float(np.linalg.eigvalsh((g + g.T).numpy() / 2)[0]),
        lambda c: fedfw.Spectrahedron(2.0 * c),
    ),
    "spectrahedron-lanczos": Case(
        fedfw.Spectrahedron(2.0),
        (130, 130),
        lambda g: 2.0 * float(np.linalg.eigvalsh((g + g.T).numpy() / 2)[0]),
    ),
    "rows": Case(
        fedfw.RowBalls(1.5),
        (4, 3),
        lambda g: -1.5 * float(g.norm(dim=1).sum()),
        lambda c: fedfw.RowBalls(1.5 * c),
    ),
    "rows-of-a-kernel": Case(
        fedfw.RowBalls(1.5), (3, 2, 2), lambda g: -1.5 * float(g.flatten(1).norm(dim=1).sum())
    ),
    "layers": Case(
        fedfw.LayerBalls(1.5), (8, 2), by_sigma(3.0, 2), lambda c: fedfw.LayerBalls(1.5 * c)
    ),
    "layers-of-a-network": Case(
        fedfw.LayerBalls(1.5, embedding=2.0).bind(
            {"embedding.weight": (5, 4), "weight": (4, 4), "bias": (3,)}
        ),
        (39,),
        lambda g: (
            -4.0 * float(g[:20].reshape(5, 4).norm(dim=1).sum())
            + by_sigma(1.5, 4)(g[20:36].reshape(4, 4))
            - 0.5 * float(g[36:].abs().sum())
        ),
    ),
    "lipschitz": Case(
        fedfw.LipschitzNet(3.0),
        (5, 4),
        by_sigma(3.0 * (1 - 1e-5 - 2.0**-17), 4),
        lambda c: fedfw.LipschitzNet(3.0 * c),
    ),
    "birkhoff": Case(fedfw.Birkhoff(), (4, 4), by_enumeration(PERMUTATIONS)),
    "hull": Case(
        fedfw.Hull(POINTS), (2, 3), by_enumeration(list(POINTS)), lambda c: fedfw.Hull(POINTS * c)
    ),
    "polytope": Case(
        fedfw.Polytope(CUT_A, CUT_B),
        (5,),
        lp(CUT_A.numpy(), CUT_B.numpy()),
        scaled=lambda r: fedfw.Polytope(CUT_A, r * CUT_B),
    ),
    "product": Case(
        fedfw.Product({"weight": fedfw.NuclearBall(3.0), "*": fedfw.L1Ball(1.0)}).bind(
            torch.nn.Linear(5, 4)
        ),
        (24,),
        lambda g: by_sigma(3.0, 1)(g[:20].reshape(4, 5)) - float(g[20:].abs().max()),
    ),
    "linear-layer": Case(
        fedfw.NuclearBall(3.0).bind(torch.nn.Linear(5, 4)),
        (24,),
        lambda g: by_sigma(3.0, 1)(torch.cat([g[:20].reshape(4, 5), g[20:, None]], 1)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_set_keeps_its_promises(name: str) -> None:
    case = CASES[name]
    trials = 4 if name.endswith(("lanczos", "polytope")) else 12  # of those that take longest
    check_constraint(
        case.set, case.shape, trials=trials, reference=case.reference, radius_scaled=case.scaled
    )


def test_every_registered_set_is_checked() -> None:
    checked = {type(case.set) for case in CASES.values()}
    assert {entry.cls for entry in fedfw.SETS.values()} <= checked


def single(p: int) -> Tensor:
    return torch.randn(20, p, generator=torch.Generator().manual_seed(p), dtype=torch.float64)


@pytest.mark.parametrize(
    ("one", "other", "shape"),
    [
        (fedfw.KSparse(1, 2.0), fedfw.L1Ball(2.0), (12,)),
        (fedfw.KSparse(12, 2.0), fedfw.LinfBall(2.0), (12,)),
        (fedfw.KSparse(500, 2.0), fedfw.LinfBall(2.0), (12,)),
        (fedfw.KSupport(1, 2.0), fedfw.L1Ball(2.0), (12,)),
        (fedfw.KSupport(12, 2.0), fedfw.L2Ball(2.0), (12,)),
        (fedfw.PartialIsometry(1, 2.0), fedfw.NuclearBall(2.0), (3, 4)),
        (fedfw.PartialIsometry(3, 2.0), fedfw.SpectralBall(2.0), (3, 4)),
        (fedfw.Hull(torch.eye(12)), fedfw.Simplex(1.0), (12,)),
        (fedfw.Hypersimplex(1), fedfw.Simplex(1.0), (12,)),
        (fedfw.GroupBall(2.0, torch.arange(12)), fedfw.L1Ball(2.0), (12,)),
        (fedfw.GroupBall(2.0, torch.zeros(12, dtype=torch.int64)), fedfw.L2Ball(2.0), (12,)),
        (fedfw.Box(-2.0, 2.0), fedfw.LinfBall(2.0), (12,)),
        (fedfw.Product({"*": fedfw.L1Ball(2.0)}).bind({"w": (12,)}), fedfw.L1Ball(2.0), (12,)),
        (fedfw.NuclearBall(2.0), fedfw.L2Ball(2.0), (1, 12)),
        (
            fedfw.Polytope(torch.cat([torch.eye(4), -torch.eye(4)]), torch.ones(8)),
            fedfw.LinfBall(1.0),
            (4,),
        ),
    ],
    ids=lambda value: repr(value) if isinstance(value, ConstraintSet) else None,
)
def test_equivalent_sets_agree(one: ConstraintSet, other: ConstraintSet, shape: Shape) -> None:
    G = single(math.prod(shape)).reshape(-1, *shape)
    ours, theirs = (D.lmo(G, batch=True).dense(torch.float64) for D in (one, other))
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert torch.allclose(
        one.project(3 * G, batch=True), other.project(3 * G, batch=True), atol=1e-6
    )
    assert one.diameter(shape) == pytest.approx(other.diameter(shape), rel=1e-6)
    assert torch.equal(one.contains(G / 4, batch=True), other.contains(G / 4, batch=True))


# --- numbers at the ends of their ranges ---

LOWEST = {torch.float16: -24, torch.bfloat16: -133, torch.float32: -149, torch.float64: -1074}
"""Exponents of the smallest subnormal numbers."""


def times_power(x: Tensor, exponent: int) -> Tensor:
    """x times 2^exponent in float64, in two steps: neither factor overflows."""
    half = exponent // 2
    return x.double() * 2.0**half * 2.0 ** (exponent - half)


def small_directions(shape: Shape, dtype: torch.dtype, above: int) -> Tensor:
    """Rows of numbers whose smallest is 2^above times the smallest of the dtype: dense, few, one,
    and equal ones.
    """
    draw = torch.Generator().manual_seed(above)
    whole = torch.randint(-20, 21, (6, *shape), generator=draw)
    whole[1] *= torch.rand(shape, generator=draw) < 0.3
    whole[2] = whole[2].sign()
    whole[3] = 0
    whole[3].view(-1)[above % whole[3].numel()] = -1
    whole[4] = 1
    whole[5] *= 2 ** torch.randint(0, 12, shape, generator=draw)
    return times_power(whole, LOWEST[dtype] + above).to(dtype)


@pytest.mark.parametrize("dtype", LOWEST)
@pytest.mark.parametrize("name", CASES)
def test_a_subnormal_direction_counts_as_any_other(name: str, dtype: torch.dtype) -> None:
    """The atom is as good as that for the same numbers times a power of two, which makes them
    normal.
    """
    case = CASES[name]
    size = case.set.diameter(case.shape)
    for above in (0, 1, 9):
        G = small_directions(case.shape, dtype, above)
        usual = times_power(G, -LOWEST[dtype] - above)
        found, best = case.set.lmo(G, batch=True), case.set.lmo(usual, batch=True)
        inside = case.set.contains(found.dense(torch.float64), batch=True)
        assert bool(torch.as_tensor(inside).all())
        least, allowed = best.dot(usual), 1e-5 * size * usual.flatten(1).norm(dim=1)
        assert bool((found.dot(usual) <= least + allowed).all())
        if (
            found.bound is not None
        ):  # a sum of numbers that were rounded to the smallest ones there are
            spacing = times_power(torch.tensor(len(G[0].flatten())), LOWEST[torch.float64])
            most = times_power(least + 0.1 * allowed, LOWEST[dtype] + above)
            assert bool((found.bound.double() <= most + spacing).all())
        atom = found[0]
        assert torch.equal(
            fedfw.Atom.from_bytes(atom.to_bytes(), case.set, case.shape).dense(), atom.dense()
        )


@pytest.mark.parametrize("dtype", LOWEST)
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].set.has_projection])
def test_a_subnormal_point_has_the_projection_of_zero(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    X = small_directions(case.shape, dtype, 0)
    at_zero = case.set.project(torch.zeros(case.shape, dtype=dtype))
    rounding = 10 * torch.finfo(dtype).eps * (1 + case.set.diameter(case.shape))
    for projected in (case.set.project(X, batch=True), case.set.shrink(X, batch=True)):
        assert bool(projected.isfinite().all())
    nearest = case.set.project(X, batch=True).double()
    farthest = X.double().flatten(1).norm(dim=1).max()
    assert float((nearest - at_zero.double()).flatten(1).norm(dim=1).max()) <= farthest + rounding
    apart = torch.tensor([case.set.distance(x) for x in X], dtype=torch.float64)
    assert (
        float((apart - case.set.distance(torch.zeros(case.shape))).abs().max()) <= farthest + 1e-6
    )


# --- Projections of points of any size, in every dtype: inside of the set and nearest, or
# refused with the size ---

SMALL = {name: case for name, case in CASES.items() if not name.endswith("lanczos")}
FARTHEST = {"polytope": 8}
"""Exponents up to which the solver of a set can project points from their places."""
WITHOUT_INTERIOR = {"simplex", "hypersimplex", "spectrahedron", "birkhoff"}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def excess(constraint: ConstraintSet, x: Tensor, nearest: Tensor, extent: float) -> float:
    """How far the oracle refutes that P = ``nearest`` is the projection of x: max <x - P, s - P>,
    relative to sizes.
    """
    way = (nearest - x).reshape(1, -1)
    length = float(robust_row_norms(way))
    if length == 0:
        return 0.0
    direction = (way / length).reshape(x.shape)
    best = constraint.lmo(direction, precision=torch.float64).dense(torch.float64)
    return float((direction * ((nearest - best) / extent)).sum()) / (1 + extent / length)


def allowed(constraint: ConstraintSet, x: Tensor) -> float:
    """The excess that `project` may leave: 2^-20, or what 32 roundings of the point explain where
    they are few.
    """
    roundings = (
        32
        * 2.0**-53
        * float(robust_row_norms(x.reshape(1, -1)))
        / constraint.diameter(tuple(x.shape))
    )
    return max(2.0**-20, roundings if roundings <= 2.0**-7 else 0.0)


def points(shape: Shape, kind: str, exponent: float, seed: int) -> Tensor:
    """A point of about the size 10^exponent: Gaussian, non-negative, with many ties, or with
    entries of many sizes.
    """
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=random, dtype=torch.float64)
    if kind == "non-negative":
        x = x.abs()
    elif kind == "ties":
        x = (2 * x).round()
    elif kind == "many sizes":
        x = x * 10 ** (-40 * torch.rand(shape, generator=random, dtype=torch.float64))
    return x * 10.0**exponent


KINDS = ["Gaussian", "non-negative", "ties", "many sizes"]


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    exponent=st.floats(-300, 200) | st.floats(-3, 20),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(DTYPES),
)
def test_points_of_any_size_are_projected_into_the_set(
    name: str, kind: str, exponent: float, seed: int, dtype: torch.dtype
) -> None:
    constraint, shape = SMALL[name].set, SMALL[name].shape
    most = FARTHEST.get(name, math.log10(torch.finfo(dtype).max) - 2)
    x = points(shape, kind, min(exponent, most), seed).to(dtype)
    nearest = constraint.project(x)
    assert nearest.dtype == dtype
    assert bool(nearest.isfinite().all())
    step = torch.finfo(dtype).eps
    coarse = step > 1e-4
    assert constraint.contains(nearest, 8 * step if coarse and name in WITHOUT_INTERIOR else 1e-6)
    if dtype is torch.float64:
        assert excess(constraint, x, nearest, constraint.diameter(shape)) <= allowed(constraint, x)


@pytest.mark.parametrize("name", [name for name, case in SMALL.items() if case.scaled is not None])
@pytest.mark.parametrize("radius", [1e-300, 1e-8, 1e8, 1e160])
def test_sets_of_any_size_have_projections(name: str, radius: float) -> None:
    case = SMALL[name]
    assert case.scaled is not None
    constraint = case.scaled(radius)
    extent = constraint.diameter(case.shape)
    for exponent in (-1, 1, 9, 18, 40):
        if exponent > FARTHEST.get(name, math.inf):
            continue
        x = points(case.shape, "Gaussian", exponent, exponent) * radius
        nearest = constraint.project(x)
        assert constraint.contains(nearest)
        assert excess(constraint, x, nearest, extent) <= allowed(constraint, x)
        assert math.isfinite(constraint.distance(x))


def test_general_polytopes_agree_with_the_closed_form_up_to_the_rounding_of_the_point() -> None:
    p = 6
    inequalities = (
        torch.cat([-torch.eye(p), torch.ones(1, p)]),
        torch.cat([torch.zeros(p), torch.ones(1)]),
    )
    corners = torch.cat([torch.zeros(1, p), torch.eye(p)])
    for constraint in (fedfw.Polytope(*inequalities), fedfw.Hull(corners)):
        for exponent in range(11):
            for kind in ("Gaussian", "ties"):
                details = points((p,), "Gaussian", 0, 1)
                x = points((p,), kind, exponent, exponent) + details
                apart = float(
                    (constraint.project(x) - fedfw.CappedSimplex(1.0).project(x)).abs().max()
                )
                assert apart <= 1e-14 * 10.0**exponent + 1e-10, constraint


@BOTH
def test_a_stack_with_one_far_row_has_the_rows_that_each_point_has_alone(
    dtype: torch.dtype,
) -> None:
    for name, case in SMALL.items():
        exponents = (0, FARTHEST.get(name, 30))
        near, far = (
            points(case.shape, "Gaussian", exponent, 1).to(dtype) for exponent in exponents
        )
        both = case.set.project(torch.stack([near, far]), batch=True)
        size = case.set.diameter(case.shape)
        for row, x in zip(both, (near, far), strict=True):
            assert float((row - case.set.project(x)).abs().max()) <= 1e-6 * size, name


# --- sets of one's own ---


class Raising(fedfw.L1Ball):
    """A solver that gives up on large numbers."""

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        raise RuntimeError("no convergence")


class Hopeless(fedfw.L2Ball):
    """Its projection of far points is never inside."""

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return torch.where(x.abs().amax(1, keepdim=True) > 100, x / 7, super()._project(x, shape))


class NotANumber(fedfw.L2Ball):
    """Its projection divides infinity by infinity."""

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return x * (self.r / (x.square().sum(1, keepdim=True) * 1e300).sqrt())


@BOTH
@pytest.mark.parametrize(
    "constraint", [Hopeless(1.0), NotANumber(1.0), Raising(1.0)], ids=["outside", "NaN", "raises"]
)
def test_what_cannot_be_verified_is_refused_with_the_size(
    constraint: ConstraintSet, dtype: torch.dtype
) -> None:
    x = torch.tensor([1e30, -2e30], dtype=dtype)
    with pytest.raises(
        fedfw.InfeasibleError,
        match=r"cannot project a point with entries up to 2e\+30 on .*\(r=1.0\)",
    ):
        constraint.project(x)
    bound = fedfw.Product({"a": fedfw.L1Ball(1.0), "b": constraint}).bind({"a": (2,), "b": (2,)})
    with pytest.raises(fedfw.InfeasibleError, match=r"2e\+30"):
        bound.project(torch.cat([x, x]))


def test_a_set_without_a_projection_still_says_so_for_far_points() -> None:
    class OracleOnly(fedfw.L2Ball):
        _project = fedfw.ConstraintSet._project

    for size in (2.0, 1e100):
        with pytest.raises(fedfw.NoProjectionError):
            OracleOnly(1.0).project(torch.tensor([size, 0.0], dtype=torch.float64))


@BOTH
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused_with_the_row_at_every_size(
    bad: float, dtype: torch.dtype
) -> None:
    for case in SMALL.values():
        x = torch.stack(
            [points(case.shape, "Gaussian", 20, 0), points(case.shape, "Gaussian", 0, 1)]
        ).to(dtype)
        x[1].view(-1)[0] = bad
        with pytest.raises(fedfw.NonFiniteError) as error:
            case.set.project(x, batch=True)
        assert error.value.rows == (1,)


# --- products and layers ---


@BOTH
def test_a_part_of_a_product_is_far_by_its_own_measure(dtype: torch.dtype) -> None:
    """The first part is so large that the point is near for the product as a whole."""
    parts = {"a": fedfw.L2Ball(1e12), "b": fedfw.KSparse(2, 1e-6), "c": fedfw.Simplex(1e-5)}
    bound = fedfw.Product(parts).bind({"a": (3,), "b": (4,), "c": (4,)})
    x = torch.tensor([1.0, 2.0, 3.0] + 2 * [1e10, -3e10, 2e10, 5e9], dtype=dtype)
    nearest = bound.project(x)
    assert bound.contains(nearest)
    assert nearest[:3].tolist() == [1.0, 2.0, 3.0]
    wanted = torch.tensor([0, -1e-6, 1e-6, 0, 0, 0, 1e-5, 0], dtype=dtype)
    torch.testing.assert_close(nearest[3:], wanted, atol=1e-12, rtol=1e-6)
    layer = fedfw.PartialIsometry(2, 1e-6).bind(torch.nn.Linear(3, 4))
    assert layer.contains(layer.project(points((16,), "Gaussian", 20, 0).to(dtype)))


# --- rounding ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_boxes_far_from_the_origin_hold_their_projections(dtype: torch.dtype) -> None:
    box = fedfw.Box(10.01, 10.99)
    for x in (torch.zeros(4, dtype=dtype), torch.full((4,), 100.0, dtype=dtype)):
        assert box.contains(box.project(x), 0.0)
    narrow = fedfw.Box(torch.tensor([1000.0001, 0.0]), torch.tensor([1000.002, 1.0]))
    if dtype is torch.float32:
        assert narrow.contains(narrow.project(torch.zeros(2)), 0.0)


def test_a_dtype_that_cannot_hold_a_point_of_the_set_is_refused() -> None:
    x = torch.tensor([60000.0, -1.0], dtype=torch.float16)
    with pytest.raises(
        fedfw.InfeasibleError, match=r"float16 is too coarse for Simplex.*entries up to 5.3e\+05"
    ):
        fedfw.Simplex(1e6).project(x)
    far = fedfw.Hull(torch.tensor([[1e9 + 20, 0.0], [1e9 + 21, 0.3]], dtype=torch.float64))
    with pytest.raises(fedfw.InfeasibleError, match="float32 is too coarse for Hull"):
        far.project(torch.tensor([0.0, 1.0]))
    assert far.contains(far.project(torch.tensor([0.0, 1.0], dtype=torch.float64)))
