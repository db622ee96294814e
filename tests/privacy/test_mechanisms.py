"""What is drawn has the distribution that the proofs speak of, and one sample changes no more than
they allow.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as nnf
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fedfw
from fedfw import Privacy
from fedfw.algorithms import (
    Client,
    Message,
    Oracles,
    Payload,
    Rates,
    Run,
    Setting,
    State,
    sends_atoms_only,
)
from fedfw.algorithms.optin import states_public_direction
from fedfw.algorithms.rules import net_step
from fedfw.options import options_of
from fedfw.privacy.mechanisms import Corners, GaussianNoise, Mechanism, mechanism_for, rounded
from fedfw.privacy.noise import Noise
from fedfw.privacy.rounding import LARGEST_TERM, UNIT, slack
from fedfw.privacy.steps import PrivacyPlan, PrivateOracles
from fedfw.problems.clipping import clip_factors
from fedfw.problems.oracles import Cohort
from tests.privacy.test_guarantee import problem as problem_of_steps
from tests.table import zero_layer

pytest.importorskip("dp_accounting")

N = 20_000
G = torch.tensor([0.8, -0.3, 0.1, -0.6], dtype=torch.float64)
VERTICES = torch.tensor([[1.0, 0, 0, 0], [0, 1, 1, 0], [-1, 0, 0, 1]])


def drawn(constraint: fedfw.ConstraintSet, scale: float) -> Tensor:
    """N private answers (N, 4) to the same direction."""
    noise = Noise(0, 1, [0], torch.device("cpu"))
    mechanism = mechanism_for(constraint, (4,))
    # One client's generator, N rows: draws of one row are cut into N.
    noise.uniform = lambda count: torch.rand(  # type: ignore[method-assign]
        N, count, generator=GENERATOR, dtype=torch.float64
    ).clamp(1e-16, 1 - 1e-16)
    answers = mechanism.answer(
        constraint, G.expand(N, -1), torch.full((N, 1), scale).double(), noise, None
    )
    return answers.dense()


GENERATOR = torch.Generator().manual_seed(7)


def softmax_over(points: dict[tuple[float, ...], float]) -> dict[tuple[float, ...], float]:
    top = max(points.values())
    weights = {point: np.exp(score - top) for point, score in points.items()}
    return {point: weight / sum(weights.values()) for point, weight in weights.items()}


def peeled(scores: dict[tuple[int, float], float], k: int) -> dict[tuple[float, ...], float]:
    """Choices (coordinate, sign) one after the other, each by softmax among the coordinates that
    are left.
    """
    found: Counter[tuple[float, ...]] = Counter()

    def go(point: list[float], left: dict[tuple[int, float], float], probability: float) -> None:
        if sum(value != 0 for value in point) == k:
            found[tuple(point)] += probability  # type: ignore[assignment]
            return
        for (j, sign), share in softmax_over(left).items():  # type: ignore[arg-type, misc]
            rest = {key: value for key, value in left.items() if key[0] != j}
            go([*point[: int(j)], sign, *point[int(j) + 1 :]], rest, probability * share)

    go([0.0] * 4, scores, 1.0)
    return dict(found)


def signed(scale: float) -> dict[tuple[int, float], float]:
    return {(j, sign): float(-sign * G[j] / scale) for j in range(4) for sign in (1.0, -1.0)}


def plain(scale: float) -> dict[tuple[int, float], float]:
    return {(j, 1.0): float(-G[j] / scale) for j in range(4)}


def unit(j: int) -> tuple[float, ...]:
    return tuple(float(i == j) for i in range(4))


def logistic_corners(scale: float) -> dict[tuple[float, ...], float]:
    up = torch.sigmoid(-G / (scale / 2))  # noise of scale s/2 on g
    corners = itertools.product((1.0, -1.0), repeat=4)
    return {
        corner: float(torch.where(torch.tensor(corner) > 0, up, 1 - up).prod())
        for corner in corners
    }


CASES: dict[str, tuple[fedfw.ConstraintSet, Any]] = {
    "l1": (fedfw.L1Ball(1.0), lambda s: peeled(signed(s), 1)),
    "ksparse": (fedfw.KSparse(2, 1.0), lambda s: peeled(signed(s * 2**0.5), 2)),
    "simplex": (fedfw.Simplex(1.0), lambda s: peeled(plain(s), 1)),
    "hypersimplex": (fedfw.Hypersimplex(2), lambda s: peeled(plain(s * 2**0.5), 2)),
    "capped simplex": (
        fedfw.CappedSimplex(1.0),
        lambda s: softmax_over({unit(j): float(-G[j] / s) for j in range(4)} | {(0.0,) * 4: 0.0}),
    ),
    "hull": (
        fedfw.Hull(VERTICES),
        lambda s: softmax_over(
            {tuple(v.tolist()): float(-(G @ v.double()) / (2 * s)) for v in VERTICES}
        ),
    ),
    "linf": (fedfw.LinfBall(1.0), logistic_corners),
    "box": (fedfw.Box(-1.0, 1.0), logistic_corners),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_choices_have_the_distribution_of_the_exponential_mechanism(
    name: str, scale: float
) -> None:
    constraint, theory = CASES[name]
    expected = theory(scale)
    assert sum(expected.values()) == pytest.approx(1)
    seen = Counter(map(tuple, drawn(constraint, scale).tolist()))
    assert set(seen) <= set(expected)
    rare = [key for key, share in expected.items() if N * share < 10]
    counts = [seen[key] for key in expected if key not in rare] + [
        sum(seen[key] for key in rare)
    ] * bool(rare)
    shares = [expected[key] for key in expected if key not in rare] + [
        sum(expected[key] for key in rare)
    ] * bool(rare)
    assert scipy.stats.chisquare(counts, N * np.array(shares) / sum(shares)).pvalue > 1e-4


def test_noise_has_its_moments_and_secure_noise_never_repeats() -> None:
    noise = Noise(None, 1, [0], torch.device("cpu"))
    draws = {
        name: getattr(noise, name)(200_000)
        for name in ("uniform", "gumbel", "logistic", "gaussian")
    }
    expected = {
        "uniform": "uniform",
        "gumbel": "gumbel_r",
        "logistic": "logistic",
        "gaussian": "norm",
    }
    for name, values in draws.items():
        assert scipy.stats.kstest(values[0].numpy()[:20_000], expected[name]).pvalue > 1e-6
    scale, nothing = torch.full((1, 1), 3.0).double(), torch.zeros(1, 20_000).double()
    released = GaussianNoise().gradient(nothing, scale, noise, torch.float64)
    assert scipy.stats.kstest(released[0].numpy() / 3, "norm").pvalue > 1e-6
    assert not torch.equal(noise.uniform(8), noise.uniform(8))
    both = Noise(3, 5, [4, 9], torch.device("cpu")).uniform(8)
    assert torch.equal(both[1:], Noise(3, 5, [9], torch.device("cpu")).uniform(8))
    assert not torch.equal(both[1:], Noise(3, 6, [9], torch.device("cpu")).uniform(8))


# --- clipping and sensitivity ---


def problem(
    kind: str, sizes: tuple[int, ...] = (6, 9, 9), seed: int = 0, l2: float = 0.0
) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(seed)
    clients = [
        (
            3 * torch.randn(size, 5, generator=generator),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for size in sizes
    ]
    torch.manual_seed(seed)
    model = (
        nn.Linear(5, 3)
        if kind == "linear"
        else nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    )
    return fedfw.Problem(model, nnf.cross_entropy, clients, l2=l2)


def by_hand(
    problem: fedfw.Problem, x: Tensor, client: int, norm: str, clip: float, data: Any
) -> Tensor:
    order = 2 if norm == "l2" else torch.inf
    total = torch.zeros_like(x)
    for sample, target in zip(*data, strict=True):
        model = problem.trained(x)
        nnf.cross_entropy(model(sample[None]), target[None]).backward()
        g = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        total += g * min(1.0, clip / float(torch.linalg.vector_norm(g, order)))
    return total


@pytest.mark.parametrize("kind", ["linear", "network"])
@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("clip", [0.3, 100.0])
def test_clipped_gradients_are_those_of_single_samples(kind: str, norm: str, clip: float) -> None:
    sizes = (6, 9, 9)
    p = problem(kind, sizes)
    generator = torch.Generator().manual_seed(0)
    x = p.start + 0.5 * torch.randn(3, len(p.start), generator=generator)
    keep = torch.rand(3, 9, generator=generator) < 0.6
    data = [
        (3 * torch.randn(s, 5, generator=g), torch.randint(0, 3, (s,), generator=g))
        for g in [torch.Generator().manual_seed(0)]
        for s in sizes
    ]
    count = torch.tensor([4.0, 7.0, 7.0])
    for kept in (None, keep):
        ours = p.losses.clipped_gradient(x, torch.arange(3), kept, norm, clip, count)
        some = p.losses.clipped_gradient(
            x[[2, 0]],
            torch.tensor([2, 0]),
            None if kept is None else kept[[2, 0]],
            norm,
            clip,
            count[[2, 0]],
        )
        for i, (inputs, targets) in enumerate(data):
            chosen = slice(None) if kept is None else kept[i, : len(inputs)]
            wanted = by_hand(p, x[i], i, norm, clip, (inputs[chosen], targets[chosen])) / count[i]
            assert torch.allclose(ours[i], wanted.double(), atol=1e-5)
        assert torch.allclose(some, ours[[2, 0]], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sample_that_a_loss_refuses_counts_as_one_without_a_gradient(dtype: torch.dtype) -> None:
    """`BCELoss` raises an error for a NaN, the output where a sample's score is inf - inf."""
    inputs = torch.rand(9, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    targets = torch.arange(9).remainder(2).to(dtype)
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Sigmoid(), nn.Flatten(0)).to(dtype)
    huge = torch.finfo(dtype).max
    x = torch.tensor([[huge, -huge, 3.0, -1.0]], dtype=dtype)
    inputs[:, :2] = 0.0
    count = torch.tensor([9.0], dtype=torch.float64)
    refused = inputs.clone()
    refused[4, :2] = 10.0

    def clipped(samples: Tensor, keep: Tensor | None) -> Tensor:
        losses = fedfw.Problem(model, nn.BCELoss(), [(samples, targets)]).losses
        return losses.clipped_gradient(x, torch.tensor([0]), keep, "l2", 1.0, count)

    others = (torch.arange(9) != 4)[None]
    assert torch.equal(clipped(refused, None), clipped(inputs, others))
    assert torch.equal(clipped(refused[[4] * 9], None), torch.zeros(1, 4, dtype=torch.float64))


def test_an_error_of_all_samples_at_all_points_is_raised() -> None:
    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.sum() > 0:  # torch.func refuses to branch by values
            return outputs.mean()
        return -outputs.mean()

    samples = torch.rand(9, 4), torch.zeros(9)
    losses = fedfw.Problem(nn.Linear(4, 1), broken, [samples], convex=False).losses
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        losses.clipped_gradient(
            torch.zeros(1, 5), torch.tensor([0]), None, "l2", 1.0, torch.ones(1)
        )


def test_the_l2_term_is_no_samples() -> None:
    """It needs neither clipping nor noise, and must not take either along in its rounding."""
    x = torch.randn(3, 18, generator=torch.Generator().manual_seed(0))
    who, count = torch.arange(3), torch.tensor([6.0, 9.0, 9.0])
    plain, pulled = (problem("linear", l2=l2).losses for l2 in (0.0, 0.1))
    clipped = [
        losses.clipped_gradient(x, who, None, "l2", 1.0, count) for losses in (plain, pulled)
    ]
    assert torch.equal(*clipped)
    assert plain.public_gradient(x) is None
    term = pulled.public_gradient(x)
    assert torch.allclose(term, 0.1 * x)


# --- precision ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [1e-12, 1e-6, 1.0, 1e12])
def test_factors_are_one_up_to_the_bound_and_no_vector_is_longer_than_it(
    dtype: torch.dtype, clip: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.exp2(torch.randint(-60, 60, (4000,), generator=generator).double())
    norms = (clip * spread * torch.rand(4000, generator=generator, dtype=torch.float64)).to(dtype)
    norms = torch.cat([norms, norms.new_tensor([0.0, clip])])
    factors = clip_factors(norms, clip)
    assert factors.dtype is torch.float64
    assert bool((factors[norms.double() <= clip] == 1).all())
    assert float((factors * norms.double()).max()) <= clip * (1 + 4 * UNIT)
    strange = clip_factors(torch.tensor([torch.inf, torch.nan, -torch.inf], dtype=dtype), clip)
    assert strange.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["layer", "network"])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_norms_of_many_parameters_are_worked_out_in_float64(
    kind: str, norm: str, dtype: torch.dtype
) -> None:
    """In float32 the norm of a million equal numbers is 0.04 % too small, and gradients were that
    much too long.
    """
    p, clip = 10**6, 1e-3
    samples = torch.full((2, p), 0.1, dtype=dtype), torch.tensor([[5.0], [5.0]], dtype=dtype)
    layer = nn.Linear(p, 1, bias=False)
    torch.nn.init.constant_(layer.weight, 1e-7)
    model = (
        layer if kind == "layer" else nn.Sequential(layer, nn.Tanh(), nn.Linear(1, 1, bias=False))
    )
    losses = fedfw.Problem(model.to(dtype), nnf.mse_loss, [samples]).losses
    x = torch.full((1, p + (kind == "network")), 1e-7, dtype=dtype)
    x[0, -1] = 1.0
    both = losses.clipped_gradient(
        x, torch.tensor([0]), None, norm, clip, torch.ones(1, dtype=torch.float64)
    )
    order = 2 if norm == "l2" else torch.inf
    assert float(torch.linalg.vector_norm(both, order)) == pytest.approx(2 * clip, rel=1e-9)


def test_squares_that_underflow_make_no_gradient_too_long() -> None:
    """Numbers of 1e-162 have squares that float64 cannot tell from zero."""
    inputs = torch.full((1, 3), 1.5e-162, dtype=torch.float64)
    targets = torch.full((1, 1), 1e150, dtype=torch.float64)
    p = fedfw.Problem(nn.Linear(3, 1, bias=False).double(), nnf.mse_loss, [(inputs, targets)])
    x = torch.zeros(1, 3, dtype=torch.float64)
    count = torch.ones(1, dtype=torch.float64)
    clipped = p.losses.clipped_gradient(x, torch.tensor([0]), None, "l2", 1e-12, count)
    assert float(clipped.norm()) <= 1e-12 * (1 + 1e-12)


ATOMS_ONLY = [name for name, cls in fedfw.ALGORITHMS.items() if sends_atoms_only(cls("l1:1"))]
"""Methods whose private selection rests on how far one sample moves a direction."""


@pytest.mark.parametrize(
    ("method", "dtype", "samples"),
    [
        *((name, dtype, 5000) for name in ATOMS_ONLY for dtype in (torch.float32, torch.float64)),
        ("fedfw", torch.float32, 2_000_000),
        ("fedfw-sto", torch.float32, 2_000_000),
    ],
)
def test_a_sample_moves_directions_by_no_more_than_is_claimed(
    method: str, dtype: torch.dtype, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an average kept in float32 one of two million samples moved it by 1.08 times its share.

    The second run has one sample less, and is given the answers of the first one.
    """
    tape: list[tuple[Tensor, Tensor, Any]] = []
    ratios: list[float] = []
    original = Mechanism.answer

    def record(
        self: Mechanism, constraint: Any, g: Tensor, scale: Tensor, noise: Noise, tol: float | None
    ) -> Any:
        answer = original(self, constraint, g, scale, noise, tol)
        tape.append((g.clone(), scale, answer))
        return answer

    def replay(
        self: Mechanism, constraint: Any, g: Tensor, scale: Tensor, noise: Noise, tol: float | None
    ) -> Any:
        other, claimed, answer = tape[len(ratios)]
        ratios.append(float((g - other).abs().max() / claimed))
        return answer

    generator = torch.Generator().manual_seed(0)
    inputs = (torch.rand(samples, 2, generator=generator) + 0.5).to(dtype)
    targets = torch.ones(len(inputs), 1, dtype=dtype)
    known = options_of(fedfw.ALGORITHMS[method])
    options = {
        name: value for name, value in (("penalty", 0.1), ("momentum", 0.9)) if name in known
    }
    algorithm = fedfw.ALGORITHMS[method]("l1:1", **options)
    local_steps = 3 if method == "local-muon" else 1  # its momentum is that of one visit
    # With this clip rounding to float32 makes the share larger; with others it makes it smaller.
    promise = Privacy(1e6, 1e-9, clip=0.123, noise=1.0, not_private_seed=1)
    for watched in (record, replay):
        monkeypatch.setattr(Mechanism, "answer", watched)
        torch.manual_seed(0)
        model = nn.Linear(2, 1, bias=False).to(dtype)
        p = fedfw.Problem(model, nnf.binary_cross_entropy_with_logits, [(inputs, targets)])
        run = {"rounds": 3, "eval_every": 3, "local_steps": local_steps}
        fedfw.simulate(p, algorithm, privacy=promise, **run)
        inputs = inputs.clone()
        inputs[7] = torch.nan
    assert len(ratios) == 3 * local_steps
    assert 0.9 < max(ratios) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_slack_covers_the_rounding_of_sums(dtype: torch.dtype) -> None:
    """Sums in float64 differ from exact ones by less than the slack, which grows with the square of
    the samples.
    """
    n, clip = 30_000, 0.137
    generator = torch.Generator().manual_seed(0)
    inputs = (torch.rand(n, 1, generator=generator) * 5).to(dtype)
    losses = fedfw.Problem(
        nn.Linear(1, 1, bias=False).to(dtype), nnf.l1_loss, [(inputs, torch.ones(n, 1))]
    ).losses
    found = losses.clipped_gradient(
        torch.zeros(1, 1, dtype=dtype),
        torch.tensor([0]),
        None,
        "linf",
        clip,
        torch.ones(1, dtype=torch.float64),
    )
    exact = -math.fsum(min(float(a), clip) for a in inputs)
    allowed = float(slack(torch.tensor(n), parameters=1, releases=1, selects=False))
    assert abs(float(found) - exact) / clip <= allowed / 2
    more = slack(torch.tensor([10.0**3, 10.0**6]), parameters=1, releases=100, selects=False)
    assert float(more[0]) < 1e-5 < 1e-4 < float(more[1]) < 1e-2


# --- Noise that floating-point numbers do not give away ---

HERE = torch.device("cpu")


def test_small_draws_are_as_precise_as_large_ones() -> None:
    """A grid of 2^-52 would have no draws between its points, and tails made from it would be full
    of holes.
    """
    drawn = Noise(3, 1, [0], HERE).uniform(400_000)[0]
    assert float(drawn.min()) > 0
    assert float(drawn.max()) < 1
    small = drawn[drawn < 2.0**-10]
    assert 200 < len(small) < 600
    on_the_grid = (small * 2.0**52).frac() == 0
    assert float(on_the_grid.double().mean()) < 0.1


@given(st.floats(1e-30, 1e30), st.floats(-1e3, 1e3), st.integers(0, 1000))
def test_sums_of_data_and_noise_lie_on_a_grid_that_does_not_depend_on_the_data(
    scale: float, value: float, seed: int
) -> None:
    scales = torch.tensor([[scale]], dtype=torch.float64)
    noise = Noise(seed, 1, [0], HERE).gaussian(8)
    cell = 2.0 ** math.floor(math.log2(scale) - 16)
    for data in (value * scale, (value + 1) * scale):
        out = rounded(data + scales * noise, scales)
        assert torch.equal((out / cell).round() * cell, out)
        assert torch.allclose(out, data + scales * noise, atol=cell, rtol=0)


@pytest.mark.parametrize(
    "constraint", [fedfw.L1Ball(1.0), fedfw.LinfBall(1.0), fedfw.KSparse(3, 1.0)], ids=repr
)
def test_a_tiny_weight_does_not_make_the_noise_small(constraint: fedfw.ConstraintSet) -> None:
    """In float32 a weight of 2^-149 made the gradient a few units in the last place, and rounding
    drowned the noise.
    """
    for seed in range(20):
        algorithm = fedfw.FedFW(constraint, penalty=0.1)
        made, _, cohort, *_ = private_client(algorithm, 1, torch.float32, seed=seed)
        answers = []
        for weight in (1.0, 2.0**-149):
            light = replace(cohort, weights=torch.tensor([weight]))
            gradient, lmo = made.pair(light, 1, None)
            _, a = gradient(torch.zeros(1, 15))
            assert a.dtype is torch.float64  # noise is yet to come
            answers.append(lmo(a).dense())
        assert torch.equal(*answers)


# --- noise that would be lost beside what is added to gradients ---


@dataclass(frozen=True)
class TwoDuals(fedfw.FedFW):
    """FedFW with two vectors that cancel, under names of its own."""

    name, title = "two-duals", "Two duals"

    def init_client(self, run: Run, x: Tensor) -> Client:
        shared, private = super().init_client(run, x)
        nothing = torch.zeros_like(x, dtype=torch.float64)
        return Client(shared | {"u": nothing, "v": nothing}, private)

    def direction(self, d: Tensor, shared: State, msg: Message, rates: Rates) -> Tensor:
        return super().direction(d, shared, msg, rates) + shared["u"] - shared["v"]


@dataclass(frozen=True)
class OwnStep(TwoDuals):
    """What its step adds is not known: it is no longer the one of the base class."""

    name, title = "own-step", "Own step"

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        return super().local_update(run, client, msg, oracles)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "algorithm",
    [
        fedfw.FedFW("l1:1", penalty=0.1, momentum=0.9),
        fedfw.FedFWPlus("ksparse:k=2,r=1", penalty=0.1),
        fedfw.FedFWSto("simplex", penalty=0.1),
        fedfw.NaiveFW("linf:1"),
        fedfw.contrib.LocalMuon("l1:1"),
        TwoDuals("l1:1", penalty=0.1),
    ],
    ids=lambda algorithm: algorithm.name,
)
@pytest.mark.parametrize("local_steps", [1, 3])
def test_whatever_is_added_to_gradients_is_looked_at(
    algorithm: fedfw.Algorithm, local_steps: int, dtype: torch.dtype
) -> None:
    """Of every method that can be private, whatever its memory is called, and in every local step."""
    made, run, cohort, shared, message = private_client(algorithm, local_steps, dtype)

    def hides(shared: State, message: Message) -> bool:
        return made.hides(algorithm, run, shared, message, cohort)

    assert hides(shared, message)
    far = 2.0**60 * float(made.shares(cohort))
    for name, value in shared.items():
        if name != "x":
            assert not hides(shared | {name: torch.full_like(value, far)}, message)
    for name in algorithm.downloads:
        for value in (far, torch.inf, torch.nan):
            strange = {name: torch.full_like(message.xbar, value)}
            assert not hides(shared, replace(message, vectors=message.vectors | strange))
    if "penalty" in options_of(type(algorithm)):
        apart = shared | {"x": shared["x"] + 0.1}
        strong = tuple(each._replace(lam=far * 1e3) for each in message.rates)
        assert not hides(apart, replace(message, rates=strong))
        # Where all points are at xbar the first step adds nothing; later ones are somewhere in the
        # set.
        assert hides(shared, replace(message, rates=strong)) == (local_steps == 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_l2_term_must_not_hide_the_noise(dtype: torch.dtype) -> None:
    for constraint, fine in (("l1:1", True), ("l1:1e14", False)):
        algorithm = fedfw.FedFW(constraint, penalty=0.0)
        made, run, cohort, shared, message = private_client(algorithm, 1, dtype, l2=1.0)
        assert made.hides(algorithm, run, shared, message, cohort) == fine


def test_scores_that_are_sums_have_a_lower_limit() -> None:
    vertices = torch.eye(15, dtype=torch.float64)
    for constraint in (fedfw.Hull(vertices), fedfw.Simplex(1.0)):
        algorithm = fedfw.FedFWPlus(constraint, penalty=0.1)
        made, run, cohort, shared, message = private_client(algorithm, 1, torch.float64)
        limit = (
            LARGEST_TERM
            * float(made.shares(cohort))
            / (15 if isinstance(constraint, fedfw.Hull) else 1)
        )
        for factor, fine in ((0.9, True), (1.1, False)):
            ybar = torch.full((15,), factor * limit, dtype=torch.float64)
            given = replace(message, vectors=message.vectors | {"ybar": ybar})
            assert made.hides(algorithm, run, shared, given, cohort) == fine


def test_what_cannot_be_looked_at_is_refused() -> None:
    with pytest.raises(ValueError, match="own-step does not state what it adds to gradients"):
        private_client(OwnStep("l1:1", penalty=0.1), 1, torch.float32)
    gaussian = OwnStep(
        "l2:1", penalty=0.1
    )  # noise is added to its gradients, before anything else is
    private_client(gaussian, 1, torch.float32)


def test_every_method_that_can_be_private_without_noise_on_gradients_is_looked_at() -> None:
    for name, cls in fedfw.ALGORITHMS.items():
        made = cls(fedfw.L1Ball(1.0))
        if sends_atoms_only(made):
            assert states_public_direction(made), name


def test_a_simulation_refuses_a_penalty_beside_which_noise_is_lost() -> None:
    made, *_ = private_client(fedfw.FedFW("l1:1", penalty=0.1), 1, torch.float32)
    generator = torch.Generator().manual_seed(5)
    data = [
        (torch.randn(9, 4, generator=generator), torch.randint(3, (9,), generator=generator))
        for _ in range(2)
    ]
    problem = fedfw.Problem(zero_layer(4, 3), nnf.cross_entropy, data)
    options = {"rounds": 3, "privacy": made.plan.privacy}
    fedfw.simulate(problem, fedfw.FedFW("l1:1", penalty=1e3), **options)
    with pytest.raises(ValueError, match=r"round [0-9]: .* noise of a private run would be lost"):
        fedfw.simulate(problem, fedfw.FedFW("l1:1", penalty=1e30), **options)


def private_client(
    algorithm: fedfw.Algorithm,
    local_steps: int,
    dtype: torch.dtype,
    l2: float = 0.0,
    seed: int = 0,
) -> tuple[PrivateOracles, Run, Cohort, State, Message]:
    """One private client of 40 samples, its shared state at the start, and a message to step from
    zero.
    """
    generator = torch.Generator().manual_seed(5)
    data = (
        torch.randn(40, 4, generator=generator).to(dtype),
        torch.randint(3, (40,), generator=generator),
    )
    problem = fedfw.Problem(torch.nn.Linear(4, 3).to(dtype), nnf.cross_entropy, [data], l2=l2)
    D = problem.bind(algorithm.constraint)
    setting = Setting(1, D, (15,), convex=True, rounds=5, local_steps=local_steps)
    algorithm, rule = algorithm.configure(setting)
    plan = PrivacyPlan.of(
        Privacy(1.0, 1e-5, not_private_seed=seed),
        algorithm,
        D,
        shape=(15,),
        fewest_samples=40,
        rounds=5,
        local_steps=local_steps,
        batch_size=None,
    )
    zero = torch.zeros(15, dtype=dtype)
    cohort = Cohort(torch.tensor([0]), torch.tensor([1 / 3], dtype=dtype), torch.tensor([0]), D)
    run = Run(1, D, dtype)
    client = algorithm.init_client(run, zero[None].clone())
    rates = rule.rates(rule.init(), 1)
    message = Message(1, {"xbar": zero}, rates, *net_step(rates), rule.oracle_tol(rates))
    return PrivateOracles(plan, problem.losses), run, cohort, client.shared, message


# --- The one seam of a private run: gradients and oracles that stand between a client's data and
# everybody else ---

DELTA = 1e-5
BALL = fedfw.L1Ball(1.0)


def plan(
    privacy: Privacy | None = None, algorithm: fedfw.Algorithm | None = None, **changes: Any
) -> PrivacyPlan:
    algorithm = fedfw.FedFW(BALL) if algorithm is None else algorithm
    options: dict[str, Any] = {
        "shape": (21,),
        "fewest_samples": 40,
        "rounds": 5,
        "local_steps": 1,
        "batch_size": None,
    }
    privacy = Privacy(1.0, DELTA, not_private_seed=0) if privacy is None else privacy
    return PrivacyPlan.of(privacy, algorithm, algorithm.constraint, **(options | changes))


def cohort(p: fedfw.Problem, rows: list[int], constraint: fedfw.ConstraintSet = BALL) -> Cohort:
    who = torch.tensor(rows)
    return Cohort(who, p.weights.float()[who], who, constraint)


# --- the plan ---


def test_noise_is_the_least_that_keeps_the_promise() -> None:
    few, many = plan(rounds=5), plan(rounds=50)
    assert few.noise < many.noise
    for one, rounds in ((few, 5), (many, 50)):
        assert one.epsilon(rounds) <= 1.0 < one.epsilon(rounds + 2)
        assert one.most_rounds == rounds
    assert (
        plan(local_steps=2).noise == plan(rounds=10).noise
    )  # each local step is a release of its own
    given = plan(Privacy(1.0, DELTA, noise=20.0), rounds=500)
    assert given.noise == 20.0
    assert given.most_rounds < 500
    assert given.epsilon(given.most_rounds) <= 1.0 < given.epsilon(given.most_rounds + 1)


def test_mechanisms_and_refusals() -> None:
    assert isinstance(plan(algorithm=fedfw.FedFW(fedfw.L2Ball(1.0))).mechanism, GaussianNoise)
    assert isinstance(plan(algorithm=fedfw.FedFW(fedfw.LinfBall(1.0))).mechanism, Corners)
    assert not isinstance(plan().mechanism, GaussianNoise | Corners)
    assert isinstance(plan(Privacy(1.0, DELTA, mechanism="gaussian")).mechanism, GaussianNoise)
    # Clients that send more than their oracle's answers need noise on what they send.
    assert isinstance(plan(algorithm=fedfw.FrankWolfe(BALL)).mechanism, GaussianNoise)
    with pytest.raises(ValueError, match="fedfw-anchored shares exact sums of gradients"):
        plan(algorithm=fedfw.FedFWAnchored(BALL))
    with pytest.raises(ValueError, match=r"noise=1: one round would spend eps .* more than 0\.1"):
        plan(Privacy(0.1, DELTA, noise=1.0))


# --- gradients and oracles ---


def test_losses_are_kept_secret_and_a_gradient_of_everything_is_refused() -> None:
    p = problem_of_steps()
    gradient, _ = PrivateOracles(plan(), p.losses).pair(cohort(p, [0, 2]), 1, None)
    losses, a = gradient(p.start.repeat(2, 1))
    assert losses.tolist() == [0.0, 0.0]
    assert a.shape == (2, 21)
    with pytest.raises(
        ValueError, match="a gradient of all samples was asked for in a private run"
    ):
        gradient(p.start.repeat(2, 1), full=True)


def test_noise_follows_the_largest_share_where_gradients_are_averaged() -> None:
    """An average still holds gradients of the time when a sample's share was larger: that sample
    counts by it.
    """
    p = problem_of_steps()
    made = plan(Privacy(1.0, DELTA, mechanism="gaussian", not_private_seed=0))
    light = replace(cohort(p, [0]), weights=torch.tensor([0.01]))
    (share,) = PrivateOracles(made, p.losses).shares(light).tolist()
    assert share == pytest.approx(0.01 / 40)
    noise = []
    for largest in (0.0, share / 10, 50 * share):
        gradient, _ = PrivateOracles(made, p.losses, largest).pair(light, 1, None)
        exact, _ = PrivateOracles(replace(made, noise=0.0), p.losses, largest).pair(light, 1, None)
        noise.append(gradient(p.start[None])[1] - exact(p.start[None])[1])
    assert torch.allclose(noise[1], noise[0])
    assert torch.allclose(noise[2], 50 * noise[0], rtol=1e-3, atol=1e-6)


def test_the_sensitivity_has_the_slack_of_rounding() -> None:
    p, both = problem_of_steps(), torch.tensor([0, 1])
    for name in ("l1:1", "l2:1"):
        made = plan(algorithm=fedfw.FedFW(name))
        oracles, who = PrivateOracles(made, p.losses), cohort(p, [0, 1])
        more = slack(torch.full_like(both, 40), parameters=21, releases=5, selects=name == "l1:1")
        assert torch.allclose(
            oracles.sensitivity(who)[:, 0], oracles.shares(who) * (1 + more), rtol=1e-15
        )
        assert bool((oracles.sensitivity(who)[:, 0] > oracles.shares(who)).all())


def test_minibatches_are_drawn_sample_by_sample() -> None:
    """Each sample on its own with the same probability: in the mean as many as were asked for."""
    p = problem_of_steps()
    made = replace(plan(batch_size=10), noise=0.0)
    counts = []

    def clipped(x: Tensor, who: Tensor, keep: Tensor | None, *rest: Any) -> Tensor:
        counts.append(int(keep[0].sum()))
        return torch.zeros_like(x)

    p.losses.clipped_gradient = clipped  # type: ignore[method-assign]
    for t in range(200):
        gradient, _ = PrivateOracles(made, p.losses).pair(cohort(p, [0]), t, None)
        gradient(p.start[None])
    assert len(set(counts)) > 5
    assert sum(counts) / 200 == pytest.approx(10, abs=1)


@pytest.mark.parametrize("constraint", [fedfw.L1Ball(1.0), fedfw.L2Ball(1.0)])
def test_an_answer_is_given_where_no_gradient_is_finite(constraint: fedfw.ConstraintSet) -> None:
    """A run that stopped would tell of the data: noise alone decides then."""
    p = problem_of_steps()
    made = plan(algorithm=fedfw.FedFW(constraint))
    gradient, lmo = PrivateOracles(made, p.losses).pair(cohort(p, [2], constraint), 7, None)
    _, a = gradient(torch.full((1, 21), 3e38))
    assert bool(a.isfinite().all())
    assert constraint.accepts(lmo(a)[0], (21,))


def test_another_factor_than_the_weight_is_refused_where_an_oracle_adds_the_noise() -> None:
    p = problem_of_steps()
    gradient, _ = PrivateOracles(plan(), p.losses).pair(cohort(p, [0]), 1, None)
    for factors in ({"plain": True}, {"times": 3.0}):
        with pytest.raises(ValueError, match="noise is for gradients times w_i"):
            gradient(p.start[None], **factors)  # type: ignore[arg-type]


def unequal(
    kind: str, dtype: torch.dtype = torch.float32, spoil: float | None = None
) -> fedfw.Problem:
    """Clients of 10, 9 and 4 samples; ``spoil`` is put into an input of the first one's sample 3."""
    generator = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(m, 6, generator=generator).to(dtype),
            torch.randint(0, 3, (m,), generator=generator),
        )
        for m in (10, 9, 4)
    ]
    if spoil is not None:
        clients[0][0][3, 2] = spoil
    torch.manual_seed(0)
    model = {
        "layer": lambda: nn.Linear(6, 3),
        "wrapped": lambda: nn.Sequential(nn.Linear(6, 3)),
        "network": lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)),
    }[kind]()
    return fedfw.Problem(model.to(dtype), nnf.cross_entropy, clients)


KINDS = pytest.mark.parametrize("kind", ["layer", "wrapped", "network"])


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("spoil", [torch.nan, torch.inf])
def test_a_sample_that_is_not_finite_adds_zero_and_counts(
    kind: str, dtype: torch.dtype, norm: str, spoil: float
) -> None:
    """As if its gradient were zero: the others' sum is over the same number, so that nothing tells
    of it.
    """
    sound, spoilt = unequal(kind, dtype), unequal(kind, dtype, spoil)
    if kind == "network" and spoil == torch.inf:
        spoilt = unequal(
            kind, dtype, torch.nan
        )  # an infinite unit may be switched off: its gradient is then finite
    who, count = torch.tensor([0]), torch.tensor([10.0], dtype=dtype)
    for x in (sound.start[None], torch.zeros_like(sound.start)[None]):
        left_out = sound.losses.clipped_gradient(
            x, who, torch.arange(10)[None] != 3, norm, 0.5, count
        )
        given = spoilt.losses.clipped_gradient(x, who, None, norm, 0.5, count)
        assert bool(given.isfinite().all())
        if kind != "network" or bool(x.any()):
            assert torch.allclose(given, left_out, atol=1e-6)
