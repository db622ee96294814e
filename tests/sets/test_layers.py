"""Sets of whole networks by layer: which ball a parameter gets, by its name alone."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from torch import nn

import fedfw
from fedfw.sets.base import shapes_of


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


def test_every_radius_can_be_changed_in_the_text() -> None:
    parsed = fedfw.parse_set("layers:rho=3,bias=0.25,embedding=2,head=4")
    assert parsed == fedfw.LayerBalls(3, 0.25, 2, 4)
    assert parsed.bind(LanguageModel()) == fedfw.layer_balls(LanguageModel(), 3, bias=0.25, embedding=2, head=4).bind(
        LanguageModel()
    )
    assert fedfw.parse_set("layers:4") == fedfw.LayerBalls(4)
    with pytest.raises(ValueError, match="layers also needs rho"):
        fedfw.parse_set("layers")
    with pytest.raises(ValueError, match="LayerBalls: rho = 0, expected a positive finite number"):
        fedfw.parse_set("layers:0")


def test_models_and_shapes_give_the_same_set() -> None:
    for model in (LanguageModel(), nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(5, 5))):
        assert fedfw.LayerBalls(4.0).bind(model) == fedfw.LayerBalls(4.0).bind(shapes_of(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_are_flattened(dtype: torch.dtype) -> None:
    layer = nn.Conv2d(2, 6, 3, bias=False, dtype=dtype)
    D = fedfw.LayerBalls(4.0).bind(layer)
    g = torch.randn(6 * 18, generator=torch.Generator().manual_seed(0), dtype=dtype)
    s = D.lmo(g).dense(torch.float64)
    sigma = torch.linalg.svdvals(g.double().reshape(6, 18))
    assert float(s @ g.double()) == pytest.approx(-4.0 * float(sigma.sum()), rel=1e-5)
    assert torch.allclose(torch.linalg.svdvals(s.reshape(6, 18)), torch.full((6,), 4.0, dtype=torch.float64), atol=1e-4)


def test_rows_need_a_matrix() -> None:
    with pytest.raises(ValueError, match=r"RowBalls needs a matrix, got a parameter of shape \(4,\)"):
        fedfw.RowBalls(1.0).lmo(torch.ones(4))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), "much"])
def test_bad_radii_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"RowBalls: r = .*, expected a positive finite number"):
        fedfw.RowBalls(bad)
