"""The task of a fleet that is measured: softmax regression on the l1 ball, 210 parameters, with
data from each client's own seed, so that nothing but the number of nodes matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import fedfw
from fedfw.deployment import Task
from fedfw.simulation import Options


def make_task(config: Mapping[str, Any]) -> Task:
    """Return the task for so many ``clients`` and ``rounds``."""

    def own_data(client: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(client)
        samples = torch.randn(64, 20, generator=generator)
        return samples, samples[:, :10].argmax(dim=1)

    model = torch.nn.Linear(20, 10)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return Task(
        model=model,
        loss=torch.nn.functional.cross_entropy,
        algorithm=fedfw.FedFW(fedfw.L1Ball(10.0), penalty=1e-4, momentum=0.0),
        data=own_data,
        clients=int(config["clients"]),
        options=Options(rounds=int(config["rounds"])),
    )
