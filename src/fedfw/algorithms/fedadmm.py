"""FedADMM: the alternating direction method of multipliers with an inexact local step.

    x_i ~ argmin of h_i(x) + <z_i, x - xbar> + ||x - xbar||^2 / (2 eta):   K gradient steps, from the x_i of before
    z_i <- z_i + (x_i - xbar) / eta
    xtilde = mean of all (x_i + eta z_i), the absent ones' last included;   xbar = P(xtilde)

Clients send the change of x_i + eta z_i. At a fixed point x_i = xbar = x* and z_i = -grad h_i(x*), so
xtilde = x* - eta grad F(x*) and x* = P(xtilde): a minimiser.

Reference: Wang, Marella and Anderson, "FedADMM: a federated primal-dual algorithm allowing partial participation"
(2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import Evidence, Gradient, Lmo, Message, Plan, Server, State, Upload
from fedfw.algorithms.projected import ProjectedAlgorithm, dense, descend, total
from fedfw.atoms import Atom


@dataclass(frozen=True)
class FedADMM(ProjectedAlgorithm):
    """See the top of the file. ``eta`` is one over the penalty of the augmented Lagrangian."""

    eta: float = 3.0

    name: ClassVar[str] = "fedadmm"
    shares: ClassVar[str] = "how every client's x_i + eta z_i changes in each round"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eta > 0:
            raise ValueError(f"eta={self.eta}, expected a positive number")

    def start_clients(self, x: Tensor) -> State:
        return {"x": x, "z": torch.zeros_like(x)}

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"xtilde": x.clone()})

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        centre = message.xbar - self.eta * state["z"]
        x = descend(plan, gradient, state["x"], centre, 1 / self.eta)
        z = state["z"] + (x - message.xbar) / self.eta
        change = (x - state["x"]) + self.eta * (z - state["z"])
        return {"x": x, "z": z}, dense(change), None

    def server_step(self, plan: Plan, server: Server, uploads: Sequence[Upload], t: int) -> Server:
        changes, _ = total(server, uploads)
        xtilde = server.vectors["xtilde"] + changes / plan.n
        return Server(plan.project(xtilde), {"xtilde": xtilde})
