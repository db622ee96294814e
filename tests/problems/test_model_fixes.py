"""What is done to models that a problem refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn

import fedfw


def network(dtype: torch.dtype) -> nn.Module:
    block = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(block, nn.Flatten(), nn.Linear(32, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_with_batch_norm_trains_after_the_fix_that_the_refusal_names(dtype: torch.dtype) -> None:
    model = network(dtype)
    with torch.no_grad():
        model[0][1].weight.copy_(torch.arange(1.0, 9.0))
    clients = [(torch.randn(6, 1, 4, 4, dtype=dtype), torch.arange(6) % 2) for _ in range(2)]
    with pytest.raises(ValueError, match=r"'0\.1' keeps .*BatchNorm2d.* fedfw\.batch_norm_to_group_norm\(model\)"):
        fedfw.Problem(model, nnf.cross_entropy, clients)
    fixed = fedfw.batch_norm_to_group_norm(model)
    assert isinstance(model[0][1], nn.BatchNorm2d)  # the given model stays as it is
    assert torch.equal(fixed[0][1].weight, model[0][1].weight)
    assert fixed[0][1].weight.dtype == dtype
    assert [fixed[0][1].num_groups, fixed[3].num_groups] == [2, 1]
    problem = fedfw.Problem(fixed, nnf.cross_entropy, clients)
    assert problem.losses.per == "sample"  # no sample sees another one
    run = fedfw.simulate(problem, fedfw.FedAvg("l2:10", lr=0.1), rounds=5)
    assert run.history[-1].loss < run.history[0].loss


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7, 12, 64, 96, 512])
def test_groups_divide_the_channels_and_no_number_is_alone(channels: int) -> None:
    norm = fedfw.batch_norm_to_group_norm(nn.BatchNorm2d(channels))
    assert isinstance(norm, nn.GroupNorm)
    assert channels % norm.num_groups == 0
    assert norm.num_groups <= 32
    assert norm.num_groups == 1 or channels // norm.num_groups >= 4
    vector = fedfw.batch_norm_to_group_norm(nn.BatchNorm1d(channels))
    if channels > 1:
        assert float(vector(torch.randn(3, channels)).detach().abs().max()) > 0.1


def test_layers_without_scales_have_none_afterwards() -> None:
    plain = fedfw.batch_norm_to_group_norm(nn.BatchNorm2d(8, affine=False, eps=0.5))
    assert (plain.affine, plain.eps) == (False, 0.5)
