"""The attacker works where theory says it must, and nowhere else."""

import pytest
import scipy.optimize
import torch
from torch import Tensor

import fedfw
from fedfw.sets.base import shapes_of
from fedfw_reproduction.leakage import (
    Victims,
    deep_leakage_lenet,
    holding,
    psnr,
    reconstruct,
    shared_gradients,
    softmax_regression,
    ssim,
    trivial_guesses,
    watch_fedfw,
)
from fedfw_reproduction.leakage.closed_forms import cosine, from_rank_one, from_rows
from fedfw_reproduction.leakage.metrics import matched
from fedfw_reproduction.leakage.minimise import minimise
from fedfw_reproduction.leakage.reconstruct import differentiable_lmo


def images(*shape: int, seed: int = 0) -> Tensor:
    """Smooth random images in [0, 1]."""
    noise = torch.rand(*shape, 4, 4, generator=torch.Generator().manual_seed(seed))
    flat = noise.reshape(-1, 1, 4, 4)
    return torch.nn.functional.interpolate(flat, size=(8, 8), mode="bilinear").reshape(*shape, 8, 8)


@pytest.fixture
def victims() -> Victims:
    torch.manual_seed(0)
    return Victims(deep_leakage_lenet(1, 8, 5), images(2, 1, 1), torch.tensor([[1], [3]]), 5)


def test_gradients_are_those_of_the_loss(victims: Victims) -> None:
    sent = shared_gradients(victims).sent
    for own, label, g in zip(victims.images, victims.labels, sent, strict=True):
        victims.model.zero_grad()
        torch.nn.functional.cross_entropy(victims.model(own), label).backward()
        expected = torch.cat(
            [p.grad.flatten() for p in victims.model.parameters() if p.grad is not None]
        )
        assert torch.allclose(g, expected, atol=1e-6)


def test_the_search_recovers_images_from_gradients(victims: Victims) -> None:
    found = reconstruct(victims, [shared_gradients(victims)], "gradient", steps=200)
    assert bool((found.psnr > 25).all())
    assert bool((found.ssim > 0.9).all())


def test_an_l2_atom_gives_away_what_the_gradient_does(victims: Victims) -> None:
    seen = watch_fedfw(victims, holding("l2", victims.model), 1)
    for way in ("through", "explain"):
        found = reconstruct(victims, seen, way, steps=80)  # type: ignore[arg-type]
        guessed = psnr(victims.images.mean(0), victims.images).mean(1)
        assert bool((found.psnr > guessed + 3).all())


def test_through_the_l1_oracle_the_attack_never_moves(victims: Victims) -> None:
    seen = watch_fedfw(victims, holding("l1", victims.model), 1)
    few, many = (reconstruct(victims, seen, "through", steps=steps) for steps in (1, 50))
    assert torch.equal(few.images, many.images)
    g = torch.randn(2, 7, requires_grad=True)
    (slope,) = torch.autograd.grad(differentiable_lmo(fedfw.L1Ball(1.0), g).square().sum(), g)
    assert not bool(slope.any())


def test_the_derivative_of_the_l2_oracle() -> None:
    D = fedfw.Product({"weight": fedfw.L2Ball(2.0), "bias": fedfw.L2Ball(3.0)}).bind(
        torch.nn.Linear(3, 2)
    )
    g = torch.randn(
        1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    assert torch.allclose(
        differentiable_lmo(D, g), D.lmo(g.detach(), batch=True).dense(torch.float64), atol=1e-5
    )
    probe = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (slope,) = torch.autograd.grad((differentiable_lmo(D, g) * probe).sum(), g)
    h = 1e-2 * torch.eye(8, dtype=torch.float64)
    above, below = (differentiable_lmo(D, g.detach() + step) @ probe for step in (h, -h))
    assert torch.allclose((above - below) / 2e-2, slope[0], atol=1e-2)


def test_the_truth_explains_what_was_sent_in_every_round(victims: Victims) -> None:
    for kind in ("l1", "linf", "ksparse:9", "l2", "group", "nuclear"):
        constraint = holding(kind, victims.model).bind(shapes_of(victims.model))
        assert constraint.contains(victims.start)
        for seen in watch_fedfw(victims, constraint, 3):
            g = seen.direction(victims.gradients(victims.images, victims.targets, seen.x))
            best = constraint.lmo(g, batch=True).dense()
            assert torch.allclose((g * seen.sent).sum(1), (g * best).sum(1), rtol=1e-3, atol=1e-4)


def test_the_clients_points_are_those_of_fedfw(victims: Victims) -> None:
    clients = list(zip(victims.images, victims.labels, strict=True))
    problem = fedfw.Problem(victims.model, torch.nn.functional.cross_entropy, clients)
    ball = holding("l2", victims.model)
    algorithm = fedfw.FedFW(ball, penalty="theory", schedule="nonconvex", momentum=0.0)
    points: list[Tensor] = []
    fedfw.simulate(
        problem, algorithm, rounds=3, callbacks=lambda s: points.append(s.clients["x"].clone())
    )
    seen = watch_fedfw(victims, ball, 3)
    assert torch.equal(seen[0].x, victims.start)
    for before, one in zip(points, seen[1:], strict=False):
        assert torch.allclose(one.x.double(), before, atol=1e-6)
    with pytest.raises(ValueError, match="outside"):
        watch_fedfw(victims, fedfw.L2Ball(1.0), 3)


@pytest.mark.parametrize("per_parameter", [False, True])
def test_a_linear_layer_gives_its_sample_back(per_parameter: bool) -> None:
    model = softmax_regression(1, 8, 5)
    victims = Victims(model, images(3, 1, 1), torch.tensor([[0], [2], [4]]), 5)
    ball = fedfw.L2Ball(10.0)
    D = (fedfw.Product({"*": ball}) if per_parameter else ball).bind(model[1])
    nuclear = fedfw.NuclearBall(10.0).bind(model[1])
    for g, image in zip(shared_gradients(victims).sent, victims.images, strict=True):
        sent = D.lmo(g).dense()
        assert cosine(from_rows(sent[:320].reshape(5, 64), sent[320:]), image) > 0.999
        sample = from_rank_one(nuclear.lmo(g), 64)
        assert sample is not None
        assert cosine(sample, image) > 0.999
        assert from_rank_one(fedfw.L1Ball(1.0).lmo(g), 64) is None


def test_metrics() -> None:
    x = images(2, 1)
    assert psnr(x, x).tolist() == [100.0, 100.0]
    assert float(psnr(torch.zeros(1, 2, 2), torch.full((1, 2, 2), 0.1))) == pytest.approx(
        20.0, abs=1e-3
    )
    big = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert float(ssim(big, big)) == pytest.approx(1.0)
    assert float(ssim(big, 1 - big)) < 0.1
    batch = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(matched(batch[[3, 1, 4, 0, 2]], batch), batch)
    guesses = trivial_guesses(batch[:2], torch.cat([batch[1:2], torch.ones(1, 1, 4, 4)]))
    assert torch.equal(guesses["nearest public image"][1], batch[1])


def test_minimisers_treat_every_row_alone() -> None:
    scales = torch.tensor([1.0, 100.0])[:, None]

    def bowl(z: Tensor) -> Tensor:
        return (scales * torch.tensor([1.0, 10.0, 0.1]) * (z - 2).square()).sum(1)

    *_, found = minimise(bowl, torch.zeros(2, 3), 60)
    assert torch.allclose(found.best_z, torch.full((2, 3), 2.0), atol=1e-3)
    assert bool((found.best < 1e-5).all())
    *_, found = minimise(bowl, torch.zeros(2, 3), 2000, "adam")
    assert torch.allclose(found.z, torch.full((2, 3), 2.0), atol=1e-2)


def test_lbfgs_finds_its_way_through_a_bent_valley() -> None:
    """Rosenbrock's valley, from points on either side; scipy's own L-BFGS ends there too."""

    def valley(z: Tensor) -> Tensor:
        return (100 * (z[:, 1:] - z[:, :-1].square()).square() + (1 - z[:, :-1]).square()).sum(1)

    starts = torch.tensor(
        [[-1.2, 1.0, -0.5], [0.0, 2.0, 1.5], [3.0, -2.0, 0.1]], dtype=torch.float64
    )
    *_, found = minimise(valley, starts, 400)
    for start, best in zip(starts, found.best_z, strict=True):
        other = scipy.optimize.minimize(
            lambda z: float(valley(torch.tensor(z)[None])), start.numpy(), method="L-BFGS-B"
        )
        assert torch.allclose(best, torch.from_numpy(other.x), atol=1e-3)


def test_a_search_without_a_slope_ends_at_once() -> None:
    ends = [found.step for found in minimise(lambda z: 0 * z.sum(1), torch.ones(2, 3), 1000)]
    assert ends == [1]
