"""Where the kernel in one pass is used; test_cuda.py compares it with float64 on a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as nnf

import fedfw
from fedfw.gpu.softmax import can_fuse
from fedfw.problems import linear


def test_losses_use_it_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the kernel: what it gives is put where gradients belong."""
    monkeypatch.setattr(linear, "is_compiled_for", lambda *samples: False)  # which is for processors
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(9, 4, generator=generator), torch.randint(0, 3, (9,), generator=generator)) for _ in range(2)
    ]
    problem = fedfw.Problem(torch.nn.Linear(4, 3), nnf.cross_entropy, clients)
    x, who = torch.randn(2, 15, generator=generator), torch.arange(2)
    values, gradients = problem.losses.value_and_gradient(x, who, None)
    calls = []

    def stand_in(A: torch.Tensor, *rest: Any) -> None:
        _, at, classes, into_values, into_gradients = rest
        calls.append((tuple(A.shape), classes))
        assert torch.equal(at, x)
        into_values.copy_(values)
        into_gradients.copy_(gradients)

    monkeypatch.setattr(linear, "can_fuse", lambda A, classes, targets: True)
    monkeypatch.setattr(linear, "fused_softmax_gradient", stand_in)
    again = problem.losses.value_and_gradient(x, who, None)
    assert calls == [((2, 9, 4), 3)]
    assert torch.equal(again[0], values)
    assert torch.equal(again[1], gradients)
    assert not can_fuse(clients[0][0][None], 3, clients[0][1][None])  # there is no GPU in these tensors
