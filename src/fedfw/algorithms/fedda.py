"""FedDA: federated dual averaging. What is averaged is the dual z, which no projection touches.

    z_i <- z;   K times:  z_i <- z_i - lr grad h_i(P(x^1 + z_i))
    z <- z + server_lr (mean over those present of z_i - z);   xbar = P(x^1 + z)

z starts at 0 and P, the projection, is the mirror map of the squared distance from the start x^1. The server sends z,
from which a client computes its points itself. Where x* = P(x^1 + z), z moves along -grad F(x*), which the projection
takes back to x*: minimisers are fixed points of xbar, with one local step.

Reference: Yuan, Zaheer and Reddi, "Federated composite optimization" (2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import Evidence, Gradient, Lmo, Message, Plan, Server, State, Upload
from fedfw.algorithms.projected import ProjectedAlgorithm, dense, refuse_unless_positive, total
from fedfw.atoms import Atom


@dataclass(frozen=True)
class FedDA(ProjectedAlgorithm):
    """See the top of the file."""

    server_lr: float = 1.0

    name: ClassVar[str] = "fedda"
    shares: ClassVar[str] = "every client's sum of local gradients in each round"
    sends_model: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unless_positive(server_lr=self.server_lr)

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"start": x.clone(), "z": torch.zeros_like(x)})

    def broadcast(self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int) -> tuple[Server, Message]:
        return server, Message(t, server.xbar, {"z": server.vectors["z"]})

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        start = state["x"]  # a client's own copy of x^1, never changed
        z = message.vectors["z"].expand_as(start)
        for _ in range(plan.local_steps):
            _, a = gradient(plan.project(start + z))
            z = z - plan.lr * plan.n * a
        return state, dense(z - message.vectors["z"]), None

    def server_step(self, plan: Plan, server: Server, uploads: Sequence[Upload], t: int) -> Server:
        changes, present = total(server, uploads)
        z = server.vectors["z"] + (self.server_lr / present) * changes
        xbar = plan.project(server.vectors["start"] + z)
        return replace(server, xbar=xbar, vectors=server.vectors | {"z": z})
