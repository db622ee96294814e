"""The one seam of a private run: gradients and oracles that stand between a client's data and everybody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw import Privacy
from fedfw.privacy.mechanisms import Corners, GaussianNoise
from fedfw.privacy.rounding import slack
from fedfw.privacy.steps import PrivacyPlan, PrivateOracles
from fedfw.problems.oracles import Cohort, PlainOracles
from fedfw.testing.known_quadratics import Quadratics

pytest.importorskip("dp_accounting")
DELTA = 1e-5
BALL = fedfw.L1Ball(1.0)


def problem(samples: int = 40, seed: int = 0) -> fedfw.Problem:
    generator = torch.Generator().manual_seed(seed)
    clients = [
        (torch.rand(samples, 6, generator=generator), torch.randint(0, 3, (samples,), generator=generator))
        for _ in range(3)
    ]
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return fedfw.Problem(model, nnf.cross_entropy, clients, test=clients[0])


def plan(privacy: Privacy | None = None, algorithm: fedfw.Algorithm | None = None, **changes: Any) -> PrivacyPlan:
    algorithm = fedfw.FedFW(BALL) if algorithm is None else algorithm
    options: dict[str, Any] = {"shape": (21,), "fewest_samples": 40, "rounds": 5, "local_steps": 1, "batch_size": None}
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
    assert plan(local_steps=2).noise == plan(rounds=10).noise  # each local step is a release of its own
    given = plan(Privacy(1.0, DELTA, noise=20.0), rounds=500)
    assert given.noise == 20.0
    assert given.most_rounds < 500
    assert given.epsilon(given.most_rounds) <= 1.0 < given.epsilon(given.most_rounds + 1)


def test_everything_is_given_by_name() -> None:
    with pytest.raises(TypeError):
        PrivacyPlan.of(Privacy(1.0, DELTA), fedfw.FedFW(BALL), BALL, (21,), 40, 5, 1, None)  # type: ignore[misc]


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


def test_averages_of_past_gradients_do_not_gain_from_sampling() -> None:
    sampled = {"batch_size": 4, "fewest_samples": 40}
    assert plan(**sampled).accountant.rate == 0.1
    averaged = fedfw.FedFW(BALL, momentum=0.9)
    assert plan(algorithm=averaged, **sampled).accountant.rate == 1.0
    smooth = fedfw.FedFW(fedfw.L2Ball(1.0), momentum=0.9)  # noise is on the gradient there, not on the choice
    assert plan(algorithm=smooth, **sampled).accountant.rate == 0.1


def test_the_signature_changes_with_what_releases_are_planned_by() -> None:
    same = plan().signature
    assert plan().signature == same
    others = [
        plan(rounds=6),
        plan(Privacy(2.0, DELTA, not_private_seed=0)),
        plan(algorithm=fedfw.FedFW(fedfw.L2Ball(1.0))),
        plan(batch_size=4),
    ]
    assert len({same, *(one.signature for one in others)}) == 1 + len(others)


# --- gradients and oracles ---


def test_losses_are_kept_secret_and_a_gradient_of_everything_is_refused() -> None:
    p = problem()
    gradient, _ = PrivateOracles(plan(), p.losses).pair(cohort(p, [0, 2]), 1, None)
    losses, a = gradient(p.start.repeat(2, 1))
    assert losses.tolist() == [0.0, 0.0]
    assert a.shape == (2, 21)
    with pytest.raises(ValueError, match="a gradient of all samples was asked for in a private run"):
        gradient(p.start.repeat(2, 1), full=True)


@pytest.mark.parametrize("constraint", [fedfw.L1Ball(1.0), fedfw.L2Ball(1.0)])
def test_a_client_alone_draws_what_it_draws_in_a_stack(constraint: fedfw.ConstraintSet) -> None:
    """A deployed client and the simulator agree where the noise comes from a seed."""
    p = problem()
    made = plan(algorithm=fedfw.FedFW(constraint))
    oracles = PrivateOracles(made, p.losses)
    x = torch.randn(3, 21, generator=torch.Generator().manual_seed(0)) / 10

    def answers(rows: list[int]) -> Tensor:
        gradient, lmo = oracles.pair(cohort(p, rows, constraint), 4, None)
        return lmo(gradient(x[rows])[1]).dense()

    together = answers([0, 1, 2])
    for i in range(3):
        assert torch.allclose(answers([i])[0], together[i], atol=1e-5)
    assert torch.allclose(answers([2, 0]), together[[2, 0]], atol=1e-5)


def test_without_noise_and_clipping_it_is_the_gradient() -> None:
    p = problem()
    made = replace(plan(Privacy(1.0, DELTA, clip=1e6, mechanism="gaussian", not_private_seed=0)), noise=1e-12)
    x, who = torch.randn(2, 21, generator=torch.Generator().manual_seed(0)), cohort(p, [1, 2])
    private, private_lmo = PrivateOracles(made, p.losses).pair(who, 1, None)
    plain, lmo = PlainOracles(p.losses, 1, None, 0, None).pair(who, 1, None)
    assert torch.allclose(private(x)[1], plain(x)[1], atol=1e-4)
    assert torch.equal(private_lmo(plain(x)[1]).dense(), lmo(plain(x)[1]).dense())


def test_noise_follows_the_largest_share_where_gradients_are_averaged() -> None:
    """An average still holds gradients of the time when a sample's share was larger: that sample counts by it."""
    p = problem()
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
    p, both = problem(), torch.tensor([0, 1])
    for name in ("l1:1", "l2:1"):
        made = plan(algorithm=fedfw.FedFW(name))
        oracles, who = PrivateOracles(made, p.losses), cohort(p, [0, 1])
        more = slack(torch.full_like(both, 40), parameters=21, releases=5, selects=name == "l1:1")
        assert torch.allclose(oracles.sensitivity(who)[:, 0], oracles.shares(who) * (1 + more), rtol=1e-15)
        assert bool((oracles.sensitivity(who)[:, 0] > oracles.shares(who)).all())


def test_minibatches_are_drawn_sample_by_sample() -> None:
    """Each sample on its own with the same probability: in the mean as many as were asked for."""
    p = problem()
    made = replace(plan(batch_size=10), noise=0.0)
    counts = []

    def clipped(x: Tensor, who: Tensor, keep: Tensor | None, *rest: Any) -> Tensor:
        assert keep is not None
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
    p = problem()
    made = plan(algorithm=fedfw.FedFW(constraint))
    gradient, lmo = PrivateOracles(made, p.losses).pair(cohort(p, [2], constraint), 7, None)
    _, a = gradient(torch.full((1, 21), 3e38))
    assert bool(a.isfinite().all())
    assert constraint.accepts(lmo(a)[0], (21,))


def test_another_factor_than_the_weight_is_refused_where_an_oracle_adds_the_noise() -> None:
    p = problem()
    gradient, _ = PrivateOracles(plan(), p.losses).pair(cohort(p, [0]), 1, None)
    for factors in ({"plain": True}, {"times": 3.0}):
        with pytest.raises(ValueError, match="noise is for gradients times w_i"):
            gradient(p.start[None], **factors)  # type: ignore[arg-type]


def test_plain_functions_have_no_samples_to_protect() -> None:
    q = Quadratics.on("l1")
    who = torch.tensor([0])
    with pytest.raises(ValueError, match="privacy is for clients with samples"):
        PrivateOracles(plan(), q.problem.losses).pair(Cohort(who, torch.ones(1), who, BALL), 1, None)


def unequal(kind: str, dtype: torch.dtype = torch.float32, spoil: float | None = None) -> fedfw.Problem:
    """Clients of 10, 9 and 4 samples; ``spoil`` is put into an input of the first one's sample 3."""
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(m, 6, generator=generator).to(dtype), torch.randint(0, 3, (m,), generator=generator))
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
@pytest.mark.parametrize("constraint", [fedfw.L1Ball(1.0), fedfw.L2Ball(1.0)])
def test_minibatches_of_unequal_clients_some_of_them_absent(kind: str, constraint: fedfw.ConstraintSet) -> None:
    run = fedfw.simulate(
        unequal(kind),
        fedfw.FedFW(constraint, penalty=0.1),
        rounds=3,
        participation=lambda t: [[1], [2, 0], [0, 1, 2]][t - 1],
        batch_size=3,
        privacy=Privacy(1.0, 1e-3),
    )
    assert len(run.history) == 3


@KINDS
def test_a_client_draws_the_same_samples_whoever_else_is_there(kind: str) -> None:
    p = unequal(kind)
    made = replace(plan(batch_size=3, fewest_samples=4), noise=0.0)
    x = p.start + 0.1 * torch.randn(3, len(p.start), generator=torch.Generator().manual_seed(1))

    def gradients(rows: list[int]) -> Tensor:
        gradient, _ = PrivateOracles(made, p.losses).pair(cohort(p, rows), 4, None)
        return gradient(x[rows])[1]

    together = gradients([0, 1, 2])
    for rows in ([1], [2], [2, 0], [1, 2]):
        assert torch.allclose(gradients(rows), together[rows], atol=1e-6)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("spoil", [torch.nan, torch.inf])
def test_a_sample_that_is_not_finite_adds_zero_and_counts(
    kind: str, dtype: torch.dtype, norm: str, spoil: float
) -> None:
    """As if its gradient were zero: the others' sum is over the same number, so that nothing tells of it."""
    sound, spoilt = unequal(kind, dtype), unequal(kind, dtype, spoil)
    if kind == "network" and spoil == torch.inf:
        spoilt = unequal(kind, dtype, torch.nan)  # an infinite unit may be switched off: its gradient is then finite
    who, count = torch.tensor([0]), torch.tensor([10.0], dtype=dtype)
    for x in (sound.start[None], torch.zeros_like(sound.start)[None]):
        left_out = sound.losses.clipped_gradient(x, who, torch.arange(10)[None] != 3, norm, 0.5, count)
        given = spoilt.losses.clipped_gradient(x, who, None, norm, 0.5, count)
        assert bool(given.isfinite().all())
        if kind != "network" or bool(x.any()):
            assert torch.allclose(given, left_out, atol=1e-6)


@KINDS
def test_a_private_run_does_not_stop_at_a_sample(kind: str) -> None:
    run = fedfw.simulate(
        unequal(kind, spoil=torch.nan),
        fedfw.FedFW(fedfw.L1Ball(1.0), penalty=0.1),
        rounds=2,
        privacy=Privacy(1.0, 1e-3),
    )
    assert bool(run.x.isfinite().all())


def test_targets_and_points_that_are_not_finite() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(8, 6, generator=generator), torch.randn(8, 2, generator=generator)
    targets[5, 1] = torch.nan
    who, count = torch.tensor([0]), torch.tensor([8.0])
    for model in (nn.Linear(6, 2), nn.Sequential(nn.Linear(6, 2))):
        p = fedfw.Problem(model, nnf.mse_loss, [(inputs, targets)])
        given = p.losses.clipped_gradient(p.start[None], who, None, "l2", 1.0, count)
        left_out = p.losses.clipped_gradient(p.start[None], who, torch.arange(8)[None] != 5, "l2", 1.0, count)
        assert torch.allclose(given, left_out, atol=1e-6)
    huge = torch.full((3, 21), 3e38)
    gradient = problem().losses.clipped_gradient(huge, torch.arange(3), None, "linf", 1.0, torch.full((3,), 40.0))
    assert bool(gradient.isfinite().all())
