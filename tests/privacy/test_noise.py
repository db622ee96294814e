"""Noise that floating-point numbers do not give away."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
import torch.nn.functional as nnf
from hypothesis import given
from hypothesis import strategies as st

import fedfw
from fedfw.algorithms.base import Setting
from fedfw.privacy import Privacy
from fedfw.privacy.mechanisms import rounded
from fedfw.privacy.noise import Noise
from fedfw.privacy.steps import PrivacyPlan, PrivateOracles
from fedfw.problems.oracles import Cohort

HERE = torch.device("cpu")


@pytest.mark.parametrize("seed", [0, None])
def test_draws_follow_their_laws(seed: int | None) -> None:
    noise = Noise(seed, 1, [0], HERE)
    laws = {"uniform": "uniform", "gumbel": "gumbel_r", "logistic": "logistic", "gaussian": "norm"}
    for name, law in laws.items():
        drawn = getattr(noise, name)(20_000)[0]
        assert drawn.dtype is torch.float64
        assert bool(drawn.isfinite().all())
        assert scipy.stats.kstest(drawn.numpy(), law).pvalue > 1e-4, name


def test_small_draws_are_as_precise_as_large_ones() -> None:
    """A grid of 2^-52 would have no draws between its points, and tails made from it would be full of holes."""
    drawn = Noise(3, 1, [0], HERE).uniform(400_000)[0]
    assert float(drawn.min()) > 0
    assert float(drawn.max()) < 1
    small = drawn[drawn < 2.0**-10]
    assert 200 < len(small) < 600
    on_the_grid = (small * 2.0**52).frac() == 0
    assert float(on_the_grid.double().mean()) < 0.1


def test_tails_reach_beyond_what_a_grid_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Noise(None, 1, [0], HERE)
    monkeypatch.setattr(noise, "uniform", lambda count: torch.full((1, count), 2.0**-100, dtype=torch.float64))
    assert float(noise.gaussian(1).abs()) > 11  # a grid of 2^-52 ends at 8.2
    assert float(noise.gumbel(1)) == pytest.approx(100 * math.log(2), rel=1e-9)
    assert float(noise.logistic(1).abs()) == pytest.approx(101 * math.log(2), rel=1e-9)


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


def oracles(constraint: fedfw.ConstraintSet, seed: int, samples: int = 40) -> PrivateOracles:
    generator = torch.Generator().manual_seed(5)
    data = (torch.randn(samples, 4, generator=generator), torch.randint(3, (samples,), generator=generator))
    torch.manual_seed(0)
    problem = fedfw.Problem(torch.nn.Linear(4, 3), nnf.cross_entropy, [data])
    D = problem.bind(constraint)
    setting = Setting(1, D, (15,), convex=True, rounds=5)
    algorithm = fedfw.FedFW(constraint, penalty=0.1).resolved(setting)
    promise = Privacy(1.0, 1e-5, not_private_seed=seed)
    plan = PrivacyPlan.of(
        promise, algorithm, D, shape=(15,), fewest_samples=samples, rounds=5, local_steps=1, batch_size=None
    )
    return PrivateOracles(plan, problem.losses)


@pytest.mark.parametrize("constraint", [fedfw.L1Ball(1.0), fedfw.LinfBall(1.0), fedfw.KSparse(3, 1.0)], ids=repr)
def test_a_tiny_weight_does_not_make_the_noise_small(constraint: fedfw.ConstraintSet) -> None:
    """In float32 a weight of 2^-149 made the gradient a few units in the last place, and rounding drowned the noise."""
    x = torch.zeros(1, 15)
    for seed in range(20):
        answers = []
        for weight in (1.0, 2.0**-149):
            made = oracles(constraint, seed)
            D = mechanism_set(constraint)
            cohort = Cohort(torch.tensor([0]), torch.tensor([weight]), torch.tensor([0]), D)
            gradient, lmo = made.pair(cohort, 1, None)
            _, a = gradient(x)
            assert a.dtype is torch.float64  # noise is yet to come
            answers.append(lmo(a).dense())
        assert torch.equal(*answers)


def mechanism_set(constraint: fedfw.ConstraintSet) -> fedfw.ConstraintSet:
    bound: fedfw.ConstraintSet = constraint.bind({"weight": (3, 4), "bias": (3,)})
    return bound


def test_an_offset_that_would_round_the_noise_away_is_noticed() -> None:
    constraint = fedfw.L1Ball(1.0)
    made, D = oracles(constraint, 0), mechanism_set(constraint)
    for weight, size, fine in ((1 / 3, 10.0, True), (1 / 3, 2.0**40, False), (2.0**-149, 1e-3, False)):
        cohort = Cohort(torch.tensor([0]), torch.tensor([weight]), torch.tensor([0]), D)
        assert made.hides(cohort, torch.full((1, 15), size, dtype=torch.float64)) == fine, (weight, size)


@pytest.mark.parametrize("name", ["fedfw", "fedfw+", "fedfw-sto", "fedfw-anchored"])
def test_what_is_added_to_gradients_does_not_come_from_data(name: str) -> None:
    """The offset by which a client judges its server leaves averages of its own gradients out."""
    seen = []

    def watch(simulation: fedfw.simulation.Simulation) -> None:
        now, algorithm, plan = simulation.now, simulation.algorithm, simulation.plan
        (state,) = now.states
        public = algorithm.begin_round(plan, {k: v for k, v in state.items() if k in ("x", "y")}, now.message)
        seen.append(algorithm.offset(plan, public, now.message))
        held = algorithm.begin_round(plan, state, now.message)
        assert torch.equal(algorithm.offset(plan, held, now.message), seen[-1])

    options = {} if name == "fedfw-sto" else {"momentum": 0.9}
    algorithm = fedfw.ALGORITHMS[name](fedfw.L2Ball(1.0), penalty=0.1, **options)
    fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=4, callbacks=watch)
    assert seen
