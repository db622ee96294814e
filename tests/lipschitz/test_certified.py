"""Certified accuracy: known answers, and no attack within a radius changes a certified class."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import fedfw
from fedfw.lipschitz import MaxMin
from fedfw.lipschitz.certified import certified_radii


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_radius_of_a_linear_classifier(dtype: torch.dtype) -> None:
    """With scores W x and W orthogonal, the distance to the border of two classes is margin / sqrt(2)."""
    model = nn.Linear(3, 3, bias=False, dtype=dtype)
    nn.init.eye_(model.weight)
    x = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.5, 3.0], [1.0, 2.0, 0.0]], dtype=dtype)
    classes = torch.tensor([0, 2, 0])
    expected = torch.tensor([1.0, 2.5, -1.0], dtype=torch.float64) / math.sqrt(2)
    found = certified_radii(model, x, classes, fedfw.lipschitz_bound(model))
    assert torch.allclose(found, expected, atol=1e-6)
    assert bool((found <= expected).all())
    shares = fedfw.certified_accuracy(model, (x, classes), [0.0, 0.7, 0.71, 1.8])
    assert list(shares.values()) == pytest.approx([2 / 3, 2 / 3, 1 / 3, 0.0])


def test_attacks_stay_without_effect_inside_the_radius() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), MaxMin(), nn.Linear(16, 16), MaxMin(), nn.Linear(16, 4)).double()
    x = torch.randn(64, 8, dtype=torch.float64)
    classes = model(x).argmax(1)
    radii = certified_radii(model, x, classes, fedfw.lipschitz_bound(model))
    assert bool((radii > 0).all())
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(100):
        scores = model(x + delta)
        others = scores.scatter(1, classes[:, None], -math.inf).amax(1)
        (gradient,) = torch.autograd.grad((scores.gather(1, classes[:, None])[:, 0] - others).sum(), delta)
        with torch.no_grad():
            delta -= 0.2 * radii[:, None] * gradient / gradient.norm(dim=1, keepdim=True)
            delta *= (0.999999 * radii / delta.norm(dim=1)).clamp(max=1)[:, None]
    assert torch.equal(model(x + delta).argmax(1), classes)


def test_scaling_the_scores_changes_no_radius() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3))
    scaled = nn.Sequential(model, fedfw.lipschitz.Scaled(7.0))
    samples = torch.randn(30, 5), torch.randint(3, (30,))
    radii = [0.05, 0.2]
    assert fedfw.certified_accuracy(model, samples, radii) == fedfw.certified_accuracy(scaled, samples, radii)


def test_ties_and_zero_networks_certify_nothing() -> None:
    model = nn.Linear(2, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    assert fedfw.certified_accuracy(model, (torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)), [0.1]) == {0.1: 0.0}


def test_targets_that_are_no_classes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"targets are torch.float32 of shape \(4, 1\), expected class numbers"):
        fedfw.certified_accuracy(nn.Linear(2, 1), (torch.ones(4, 2), torch.ones(4, 1)), [0.1])


@pytest.mark.parametrize("radius", [-0.1, float("nan")])
def test_radii_are_at_least_zero(radius: float) -> None:
    """Below 0, samples of the wrong class would count."""
    samples = torch.tensor([[0.0, 1.0]]), torch.tensor([0])
    with pytest.raises(ValueError, match="expected numbers of at least 0"):
        fedfw.certified_accuracy(torch.nn.Identity(), samples, [0.1, radius])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_first_layer_in_place_changes_neither_samples_nor_radii(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    last = nn.Linear(4, 3)
    samples = torch.randn(20, 4, dtype=dtype), torch.randint(3, (20,))
    before = samples[0].clone()
    models = [nn.Sequential(nn.LeakyReLU(2.0, inplace=inplace), last) for inplace in (False, True)]
    plain, in_place = (certified_radii(model, *samples, fedfw.lipschitz_bound(model)) for model in models)
    assert torch.equal(plain, in_place)
    assert torch.equal(samples[0], before)


def test_a_model_is_certified_as_it_is_evaluated() -> None:
    torch.manual_seed(0)
    last = nn.Linear(4, 3)
    samples = torch.randn(20, 4), torch.randint(3, (20,))
    model = nn.Sequential(nn.Dropout(0.5), last)
    assert fedfw.certified_accuracy(model, samples, [0.1]) == fedfw.certified_accuracy(last, samples, [0.1])
    assert model.training
