"""Noise that floating-point numbers do not give away."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import scipy.stats
import torch
import torch.nn.functional as nnf
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedfw
from fedfw.algorithms.base import Kept, Message, Plan, Rates, Setting, State
from fedfw.options import options_of
from fedfw.privacy import Privacy
from fedfw.privacy.mechanisms import rounded
from fedfw.privacy.noise import Noise
from fedfw.privacy.rounding import LARGEST_TERM
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


# --- noise that would be lost beside what is added to gradients ---


@dataclass(frozen=True)
class TwoDuals(fedfw.OracleAlgorithm):
    """FedFW with two vectors that cancel, under names of its own."""

    name, title = "two-duals", "Two duals"
    contract = replace(
        fedfw.OracleAlgorithm.contract,
        remembers={**fedfw.OracleAlgorithm.contract.remembers, "u": Kept.REBUILT, "v": Kept.REBUILT},
    )

    def start_clients(self, x: Tensor) -> State:
        nothing = torch.zeros_like(x, dtype=torch.float64)
        return super().start_clients(x) | {"u": nothing, "v": nothing}

    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        return state, a + rates.lam * (state["x"] - message.xbar) + state["u"] - state["v"]


@dataclass(frozen=True)
class OwnStep(TwoDuals):
    """What its step adds is not known: it is no longer the one of the base class."""

    name, title = "own-step", "Own step"

    def client_step(self, plan: Plan, state: State, message: Message, gradient: Any, lmo: Any) -> Any:
        return super().client_step(plan, state, message, gradient, lmo)


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
    made, plan, cohort, state, message = private_client(algorithm, local_steps, dtype)

    def hides(state: State, message: Message, plan: Plan = plan) -> bool:
        return made.hides(algorithm, plan, state, message, cohort)

    assert hides(state, message)
    far = 2.0**60 * float(made.shares(cohort))
    for name, kept in algorithm.contract.remembers.items():
        if kept is Kept.REBUILT and name in state and name != "x":
            assert not hides(state | {name: torch.full_like(state[name], far)}, message)
    for name in algorithm.contract.down:
        if name != "xbar":
            for value in (far, torch.inf, torch.nan):
                assert not hides(state, replace(message, vectors={name: torch.full_like(message.xbar, value)}))
    if "penalty" in options_of(type(algorithm)):
        apart = state | {"x": state["x"] + 0.1}
        assert not hides(apart, message, replace(plan, lam_0=far * 1e3))
        # Where all points are at xbar the first step adds nothing; later ones are somewhere in the set.
        assert hides(state, message, replace(plan, lam_0=far * 1e3)) == (local_steps == 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_l2_term_must_not_hide_the_noise(dtype: torch.dtype) -> None:
    for constraint, fine in (("l1:1", True), ("l1:1e14", False)):
        algorithm = fedfw.FedFW(constraint, penalty=0.0)
        made, plan, cohort, state, message = private_client(algorithm, 1, dtype, l2=1.0)
        assert made.hides(algorithm, plan, state, message, cohort) == fine


def test_scores_that_are_sums_have_a_lower_limit() -> None:
    vertices = torch.eye(15, dtype=torch.float64)
    for constraint in (fedfw.Hull(vertices), fedfw.Simplex(1.0)):
        algorithm = fedfw.FedFWPlus(constraint, penalty=0.1)
        made, plan, cohort, state, message = private_client(algorithm, 1, torch.float64)
        limit = LARGEST_TERM * float(made.shares(cohort)) / (15 if isinstance(constraint, fedfw.Hull) else 1)
        for factor, fine in ((0.9, True), (1.1, False)):
            vectors = {"ybar": torch.full((15,), factor * limit, dtype=torch.float64)}
            assert made.hides(algorithm, plan, state, replace(message, vectors=vectors), cohort) == fine


def test_what_cannot_be_looked_at_is_refused() -> None:
    with pytest.raises(ValueError, match="own-step does not say what it adds to gradients"):
        private_client(OwnStep("l1:1", penalty=0.1), 1, torch.float32)
    gaussian = OwnStep("l2:1", penalty=0.1)  # noise is added to its gradients, before anything else is
    private_client(gaussian, 1, torch.float32)


def test_every_method_that_can_be_private_without_noise_on_gradients_is_looked_at() -> None:
    for name, cls in fedfw.ALGORITHMS.items():
        if cls.contract.answers_only and not cls.contract.sums:
            made = cls(fedfw.L1Ball(1.0))
            assert made.states_public_terms, name


def test_a_simulation_refuses_a_penalty_beside_which_noise_is_lost() -> None:
    made, *_ = private_client(fedfw.FedFW("l1:1", penalty=0.1), 1, torch.float32)
    generator = torch.Generator().manual_seed(5)
    data = [(torch.randn(9, 4, generator=generator), torch.randint(3, (9,), generator=generator)) for _ in range(2)]
    model = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    problem = fedfw.Problem(model, nnf.cross_entropy, data)
    for penalty, fine in ((1e3, True), (1e30, False)):
        algorithm = fedfw.FedFW("l1:1", penalty=penalty)
        if fine:
            fedfw.simulate(problem, algorithm, rounds=3, privacy=made.plan.privacy)
            continue
        with pytest.raises(ValueError, match=r"round [0-9]: .* noise of a private run would be lost"):
            fedfw.simulate(problem, algorithm, rounds=3, privacy=made.plan.privacy)


def private_client(
    algorithm: fedfw.Algorithm, local_steps: int, dtype: torch.dtype, l2: float = 0.0
) -> tuple[PrivateOracles, Plan, Cohort, State, Message]:
    """One private client of 40 samples, its memory at the start, and an order to step from zero."""
    generator = torch.Generator().manual_seed(5)
    data = (torch.randn(40, 4, generator=generator).to(dtype), torch.randint(3, (40,), generator=generator))
    problem = fedfw.Problem(torch.nn.Linear(4, 3).to(dtype), nnf.cross_entropy, [data], l2=l2)
    D = problem.bind(algorithm.constraint)
    setting = Setting(1, D, (15,), convex=True, rounds=5, local_steps=local_steps)
    algorithm = algorithm.resolved(setting)
    plan = PrivacyPlan.of(
        Privacy(1.0, 1e-5, not_private_seed=0),
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
    state = plan.memory(algorithm.contract, algorithm.start_clients(zero[None].clone()))
    return PrivateOracles(plan, problem.losses), algorithm.plan(setting), cohort, state, Message(1, zero)


def test_what_comes_from_data_is_remembered_in_float64() -> None:
    averaging = (
        fedfw.FedFW("l1:1", penalty=0.1, momentum=0.9),
        fedfw.FedFWPlus("l1:1", penalty=0.1, momentum=0.5),
        fedfw.FedFWSto("l1:1", penalty=0.1),
    )
    for algorithm in averaging:
        *_, state, _ = private_client(algorithm, 1, torch.float32)
        assert state["d"].dtype is torch.float64
    *_, state, _ = private_client(fedfw.FedFW("l2:1", penalty=0.1, momentum=0.9), 1, torch.float32)
    assert state["d"].dtype is torch.float32  # it has noise


@pytest.mark.parametrize("name", ["fedfw", "fedfw+", "fedfw-sto", "fedfw-anchored"])
def test_what_is_added_to_gradients_does_not_come_from_data(name: str) -> None:
    """The offset by which a client judges its server leaves averages of its own gradients out."""
    seen = []

    def watch(simulation: fedfw.simulation.Simulation) -> None:
        now, algorithm, plan = simulation.now, simulation.algorithm, simulation.plan
        (state,) = now.states
        public = algorithm.begin_round(plan, {k: v for k, v in state.items() if k not in ("d", "seen")}, now.message)
        seen.append(algorithm.offset(plan, public, now.message))
        held = algorithm.begin_round(plan, state, now.message)
        assert torch.equal(algorithm.offset(plan, held, now.message), seen[-1])

    options = {} if name == "fedfw-sto" else {"momentum": 0.9}
    algorithm = fedfw.ALGORITHMS[name](fedfw.L2Ball(1.0), penalty=0.1, **options)
    fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=4, callbacks=watch)
    assert seen
