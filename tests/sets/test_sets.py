"""Rules that are particular to some sets: construction, models, enclosing sets, names."""

import itertools
import math
from functools import cache
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedfw
from fedfw.atoms import SignVector
from fedfw.linalg import polar
from fedfw.lipschitz import MaxMin, Residual
from fedfw.models.images import Centred
from fedfw.problems.modules import with_parameters
from fedfw.sets.base import ConstraintSet, shapes_of
from fedfw.sets.containment import contains_set


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
        (
            lambda: fedfw.Polytope(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.ones(2)),
            "unbounded",
        ),
        (
            lambda: fedfw.Polytope(torch.tensor([[1.0], [-1.0]]), torch.tensor([-1.0, -1.0])),
            "empty",
        ),
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


class TestModels:
    """Sets on all the parameters of a module."""

    def test_matrix_set_on_other_models_must_be_given_per_parameter(self) -> None:
        network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        with pytest.raises(ValueError, match="a set for each parameter"):
            fedfw.NuclearBall(2.0).bind(network)
        with pytest.raises(ValueError, match=r"'0\.bias'.*needs a matrix"):
            fedfw.Product({"*": fedfw.NuclearBall(2.0)}).bind(network)

    def test_wildcards_first_match_wins_and_kernels_are_matrices(self) -> None:
        network = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Linear(4, 3))
        D = fedfw.Product(
            {
                "0.weight": fedfw.SpectralBall(1.0),
                "*.bias": fedfw.LinfBall(1.0),
                "*": fedfw.L2Ball(2.0),
            }
        )
        bound = D.bind(network)
        assert bound.parts == (
            fedfw.SpectralBall(1.0),
            fedfw.LinfBall(1.0),
            fedfw.L2Ball(2.0),
            fedfw.LinfBall(1.0),
        )
        s = bound.lmo(torch.randn(5 * 18 + 5 + 12 + 3)).dense(torch.float64)
        kernel = s[:90].reshape(5, 18)
        assert torch.allclose(
            torch.linalg.svdvals(kernel), torch.ones(5, dtype=torch.float64), atol=1e-4
        )

    def test_names_that_fit_nothing_are_refused(self) -> None:
        with pytest.raises(
            ValueError, match=r"no parameter is left for wieght .*there are weight, bias"
        ):
            fedfw.Product({"wieght": fedfw.L1Ball(1.0), "*": fedfw.L1Ball(1.0)}).bind(
                nn.Linear(2, 2)
            )
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
def test_enclosing_radius_is_the_least_one(
    constraint: ConstraintSet, norm: str, radius: float
) -> None:
    around = fedfw.enclosing(constraint, norm, (8, 8))
    assert around.r == pytest.approx(radius)  # type: ignore[attr-defined]


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
    run = fedfw.simulate(
        problem, fedfw.FedFW("box:-1,1", penalty=0.3), rounds=3, relax={1: "box:-2,2"}
    )
    algorithm = fedfw.FedFW(fedfw.Box(-1, 1), penalty=0.3)
    assert torch.equal(
        run.x, fedfw.simulate(problem, algorithm, rounds=3, relax={1: fedfw.Box(-2, 2)}).x
    )
    model = torch.nn.Linear(3, 2)
    assert fedfw.Product({"weight": "l1:2", "*": fedfw.L2Ball(1)}).sets["weight"] == fedfw.L1Ball(2)
    fedfw.optim.LMO(model, "l1:0.5")
    assert (
        fedfw.L1Ball(0.5)
        .bind(model)
        .contains(torch.cat([p.detach().flatten() for p in model.parameters()]), 1e-5)
    )
    with pytest.raises(
        TypeError, match="expected a constraint set, a Product, text such as 'l1:10'"
    ):
        fedfw.solve(problem, 3)


class TestHardCases:
    """Cases that once went wrong."""

    @pytest.mark.parametrize("size", [1e-200, 1e-300, 1e-310, 1e150, 1e300])
    @pytest.mark.parametrize("side", [3, 140])
    def test_spectral_oracles_at_extreme_sizes(self, size: float, side: int) -> None:
        g = torch.randn(side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for D in (fedfw.Spectrahedron(1.0), fedfw.NuclearBall(1.0), fedfw.PartialIsometry(2, 1.0)):
            exact, scaled = D.lmo(g).dot(g), D.lmo(g * size).dot(g)
            assert float(scaled) == pytest.approx(float(exact), rel=1e-5)

    def test_half_precision_gradients_are_upcast(self) -> None:
        g = torch.randn(140, 140, generator=torch.Generator().manual_seed(0)).bfloat16()
        D = fedfw.Spectrahedron(1.0)
        assert float(D.lmo(g).dot(g)) == pytest.approx(float(D.lmo(g.double()).dot(g)), rel=1e-3)

    def test_equal_points_of_a_hull_tie_to_the_first(self) -> None:
        points = torch.randn(50, 785, generator=torch.Generator().manual_seed(0))
        D = fedfw.Hull(torch.cat([points, points]))
        g = torch.randn(100, 785, generator=torch.Generator().manual_seed(1))
        atoms = D.lmo(g, batch=True)
        assert int(atoms.index.max()) < 50  # type: ignore[attr-defined]

    def test_nan_is_not_inside(self) -> None:
        bad = torch.full((4, 4), math.nan)
        for name in fedfw.SETS:
            assert not fedfw.SETS[name].example((4, 4)).contains(bad)


def test_atoms_and_projections_share_nothing_with_the_set_and_lie_in_rows() -> None:
    ball = fedfw.LinfBall(1.0)
    atom = ball.lmo(torch.ones(3))
    assert isinstance(atom, SignVector)
    atom.hi.mul_(5)
    assert ball.project(torch.full((3,), 9.0)).tolist() == [1.0] * 3
    columns = torch.arange(6.0).reshape(2, 3).t() / 100
    for r in (5.0, 0.01):
        assert fedfw.L2Ball(r).project(columns).is_contiguous()


# --- Which sets lie inside which: what is said to be proven is so, and what is not so is refuted
# ---

P = 6
PROVEN: list[tuple[ConstraintSet, ConstraintSet]] = [
    (fedfw.L2Ball(1.0), fedfw.L1Ball(1.0)),
    (fedfw.LinfBall(1.0), fedfw.L2Ball(1.0)),
    (fedfw.L1Ball(2.0), fedfw.L1Ball(1.0)),
    (fedfw.KSparse(3, 1.0), fedfw.L1Ball(1.0)),
    (fedfw.KSparse(3, 1.0), fedfw.KSparse(2, 1.0)),
    (fedfw.KSupport(2, 1.0), fedfw.L1Ball(1.0)),
    (fedfw.KSupport(2, 1.5), fedfw.KSupport(2, 1.0)),
    (fedfw.GroupBall(2.0, torch.arange(P) // 2), fedfw.GroupBall(1.0, torch.arange(P) // 2)),
    (fedfw.L2Ball(P**0.5), fedfw.LinfBall(1.0)),
    (fedfw.Box(-1.0, 2.0), fedfw.Box(torch.full((P,), -1.0), torch.arange(P) / 3)),
    (fedfw.Box(0.0, 1.0), fedfw.Hypersimplex(2)),
    (fedfw.Box(-1.0, 1.0), fedfw.L2Ball(1.0)),
    (fedfw.L1Ball(1.0), fedfw.Simplex(1.0)),
    (fedfw.CappedSimplex(2.0), fedfw.Hypersimplex(2)),
    (fedfw.CappedSimplex(1.0), fedfw.CappedSimplex(0.5)),
    (fedfw.LinfBall(1.0), fedfw.Box(0.0, 1.0)),
]


@pytest.mark.parametrize("pair", PROVEN, ids=str)
def test_what_norms_prove(pair: tuple[ConstraintSet, ConstraintSet]) -> None:
    larger, smaller = pair
    assert contains_set(larger, smaller, (P,)) is True
    assert contains_set(smaller, larger, (P,)) is False


def test_what_is_not_known_is_not_said_to_be_proven() -> None:
    cross = fedfw.Hull(torch.cat([torch.eye(P), -torch.eye(P)]))  # the l1 ball, as points
    assert contains_set(cross, fedfw.L1Ball(1.0), (P,)) is None

    class Positive(fedfw.L1Ball):
        """Its points are not all of the l1 ball's."""

    assert contains_set(Positive(1.0), fedfw.L1Ball(0.5), (P,)) is None


@cache
def every_pair_that_is_proven() -> list[tuple[ConstraintSet, ConstraintSet]]:
    layer = torch.nn.Linear(3, 4, bias=False)
    sets = [
        entry.example((4, 3))
        for name, entry in fedfw.SETS.items()
        if name not in ("birkhoff", "spectrahedron")
    ]
    pairs = itertools.permutations([one.bind(layer) for one in sets], 2)
    return [(larger, smaller) for larger, smaller in pairs if contains_set(larger, smaller, (12,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_point_of_a_contained_set_lies_outside(dtype: torch.dtype) -> None:
    """Every set beside every other one: points of what is said to lie inside do."""
    generator, proven = torch.Generator().manual_seed(0), every_pair_that_is_proven()
    for larger, smaller in proven:
        atoms = smaller.lmo(
            torch.randn(50, 12, generator=generator, dtype=dtype), batch=True
        ).dense(dtype)
        assert bool(torch.as_tensor(larger.contains(atoms, batch=True)).all()), (larger, smaller)
    assert len(proven) > 20


# --- Sets of whole networks by layer: which ball a parameter gets, by its name alone ---


class LanguageModel(nn.Module):
    """The names of a small transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.zeros(5, 8))
        self.blocks = nn.ModuleList([nn.Linear(8, 24, bias=False), nn.Linear(32, 8)])
        self.head = nn.Linear(8, 11, bias=False)


def test_a_language_model() -> None:
    sets = fedfw.layer_balls(LanguageModel(), rho=3.0).sets
    assert sets == {
        "position": fedfw.RowBalls(2.5 * sqrt(8)),
        "embedding.weight": fedfw.RowBalls(2.5 * sqrt(8)),
        "blocks.0.weight": fedfw.SpectralBall(3.0 * sqrt(3)),
        "blocks.1.weight": fedfw.SpectralBall(3.0),
        "blocks.1.bias": fedfw.LinfBall(0.5),
        "head.weight": fedfw.LinfBall(5 / sqrt(8)),
    }


def test_a_classifier_whose_head_is_called_head_has_a_spectral_ball_there() -> None:
    model = nn.ModuleDict({"conv": nn.Conv2d(2, 6, 3), "head": nn.Linear(4, 16)})
    sets = fedfw.layer_balls(model, rho=2.0).sets
    assert sets["head.weight"] == fedfw.SpectralBall(4.0)
    assert sets["conv.weight"] == fedfw.SpectralBall(2.0)  # 6 x 18


def test_models_and_shapes_give_the_same_set() -> None:
    for model in (LanguageModel(), nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(5, 5))):
        assert fedfw.LayerBalls(4.0).bind(model) == fedfw.LayerBalls(4.0).bind(shapes_of(model))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), "much"])
def test_bad_radii_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"RowBalls: r = .*, expected a positive finite number"):
        fedfw.RowBalls(bad)


# --- Every network in `LipschitzNet(L)` has a constant of at most L, by the bound that is proven of
# each ---


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 16), MaxMin(), nn.Linear(16, 16), MaxMin(), nn.Linear(16, 4))


def convolutions() -> nn.Module:
    return nn.Sequential(
        Centred(),
        *(
            nn.Conv2d(1, 4, 4, stride=2, padding=1),
            MaxMin(),
            nn.Conv2d(4, 8, 3, padding=1, groups=2),
            MaxMin(),
        ),
        *(nn.MaxPool2d(3, stride=2), nn.Flatten(), nn.Linear(8, 4), nn.LeakyReLU(3.0)),
    )


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Linear(9, 6), Residual(nn.Sequential(nn.Linear(6, 6), nn.ReLU())), nn.Linear(6, 3)
    )


def shared() -> nn.Module:
    layer = nn.Linear(9, 9)
    return nn.Sequential(layer, nn.ReLU(), layer)


NETWORKS = {"chain": chain, "convolutions": convolutions, "residual": residual, "shared": shared}


def points(D: fedfw.ConstraintSet, dtype: torch.dtype, generator: torch.Generator) -> list[Tensor]:
    """Extreme points, in every precision in which atoms are sent, and mixtures that were rounded
    again and again.
    """
    p = D.entries
    found = []
    x = torch.zeros(p, dtype=dtype)
    for t in range(12):
        g = torch.randn(p, generator=generator, dtype=dtype)
        precision = (torch.float16, torch.float32, torch.float64)[t % 3]  # the third atom is exact
        s = D.lmo(g, precision=precision).dense(dtype)
        x = s if t == 0 else (0.9 * x + 0.1 * s).to(dtype)
        found += [s, x, D.random_point((p,), generator, dtype), D.project(5 * g)]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("L", [0.7, 1.0, 20.0])
def test_every_point_of_the_set_has_the_constant(name: str, L: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = NETWORKS[name]().to(dtype)
    D = fedfw.LipschitzNet(L).bind(model)
    constants = []
    for x in points(D, dtype, torch.Generator().manual_seed(1)):
        nn.utils.vector_to_parameters(x, model.parameters())
        constants.append(fedfw.lipschitz_bound(model))
    assert max(constants) <= L
    if name == "chain":
        assert constants[8] >= 0.999 * L  # extreme points use it up


def test_what_a_server_accepts_has_the_constant() -> None:
    """Atoms count as inside up to 1e-6."""
    model = chain().double()
    D = fedfw.LipschitzNet(1.0).bind(model)
    x = D.lmo(
        torch.randn(D.entries or 0, generator=torch.Generator().manual_seed(0)).double()
    ).dense(torch.float64)
    outside = x * (1 + 1.1e-6)
    assert D.contains(outside, 2e-6)
    assert fedfw.lipschitz_bound(with_parameters(model, outside)) <= 1.0


@pytest.mark.parametrize(
    ("L", "model", "told"),
    [
        (1.0, nn.Sequential(Residual(nn.Linear(3, 3))), "constant is at least 1 with any weights"),
        (1.0, nn.LSTM(3, 3), r"the model \(LSTM\)"),
        (1.0, nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), r"layer 1 \(LayerNorm\)"),
    ],
)
def test_models_that_have_no_such_set_are_refused(L: float, model: nn.Module, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        fedfw.LipschitzNet(L).bind(model)


# --- The oracles of spectral sets at a tolerance ---

SHAPES = [(60, 60), (20, 90), (90, 30), (12, 3, 5, 2), (1, 7), (7, 1)]
SPECTRAL = [*map(fedfw.SpectralBall, (1.0, 0.1, 700.0)), fedfw.PartialIsometry(10**6, 3.0)]


@pytest.fixture
def _iterate_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polar, "SVD_UP_TO", 0)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sigma(x: torch.Tensor) -> np.ndarray:
    return np.linalg.svd(x.double().flatten(1).numpy(), compute_uv=False)


@pytest.mark.usefixtures("_iterate_at_every_size")
@pytest.mark.parametrize("precision", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("tol", [None, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("shape", SHAPES)
def test_decoded_atoms_are_inside_and_their_bounds_true(
    shape: tuple[int, ...], tol: float | None, precision: torch.dtype
) -> None:
    for dtype in (torch.float32, torch.float64):
        G = gaussian(2, *shape).to(dtype)
        norms = [float(sigma(g).sum()) for g in G]
        for D in SPECTRAL:
            atoms = D.lmo(G, batch=True, precision=precision, tol=tol)
            for g, nuclear, atom in zip(G, norms, atoms, strict=True):
                received = fedfw.Atom.from_bytes(atom.to_bytes(), D, shape)
                assert D.accepts(received, shape)
                assert D.accepts(received, shape, tol=0.0)
                for wide in (None, torch.float64):
                    assert sigma(received.dense(wide))[0] <= D.r
                assert float(atom.bound[0]) <= -D.r * nuclear
                assert float(atom.bound[0]) >= -D.r * nuclear * (1 + (tol or 1e-8))
                lost = (
                    (tol or 0)
                    + 4 * min(g.flatten(1).shape) ** 0.5 * torch.finfo(precision).eps
                    + 1e-8
                )
                assert float(atom.dot(g)) <= -D.r * nuclear * (1 - lost)


@pytest.mark.usefixtures("_iterate_at_every_size")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_direction_gives_a_point_of_the_set(dtype: torch.dtype) -> None:
    atom = fedfw.SpectralBall(2.0).lmo(torch.zeros(50, 60, dtype=dtype), tol=1e-3)
    assert fedfw.SpectralBall(2.0).accepts(atom, (50, 60))
    assert float(atom.bound[0]) == 0


class Counted(fedfw.SpectralBall):
    """A spectral ball that notes how many matrices each call of its oracle was given."""

    calls: list[int] = []  # noqa: RUF012

    def _lmo(self, g, shape, request):  # type: ignore[no-untyped-def]
        self.calls.append(len(g))
        return super()._lmo(g, shape, request)


@pytest.mark.usefixtures("_iterate_at_every_size")
@pytest.mark.parametrize("tol", [None, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_blocks_share_a_call_and_keep_their_atoms(
    dtype: torch.dtype, tol: float | None
) -> None:
    shapes = {"a": (30, 40), "bias": (40,), "b": (30, 40), "c": (40, 30), "d": (30, 40)}
    sets = {"bias": fedfw.LinfBall(1.0), "d": Counted(2.0), "*": Counted(1.0)}
    product = fedfw.Product(sets).bind(shapes)
    G = gaussian(3, product.entries or 0).to(dtype)
    Counted.calls.clear()
    atoms = product.lmo(G, batch=True, tol=tol)
    assert sorted(Counted.calls) == [3, 3, 6]
    bounds = torch.zeros(3, dtype=torch.float64)
    for part, D, shape, piece in zip(
        atoms.parts, product.parts, product.shapes, product._pieces(G), strict=True
    ):
        alone = D.lmo(piece.reshape(3, *shape), batch=True, tol=tol)
        assert torch.equal(part.dense(), alone.dense())
        bounds += alone.dot(piece.reshape(3, *shape)) if alone.bound is None else alone.bound
    assert torch.allclose(atoms.bound, bounds, rtol=1e-12)
    for atom in atoms:
        received = fedfw.Atom.from_bytes(atom.to_bytes(), product, (product.entries,))
        assert product.accepts(received, (product.entries,))
