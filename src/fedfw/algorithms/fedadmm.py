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

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import Evidence, Gradient, Lmo, Message, Plan, State
from fedfw.algorithms.projected import SplittingAlgorithm, dense, descend
from fedfw.atoms import Atom


@dataclass(frozen=True)
class FedADMM(SplittingAlgorithm):
    """See the top of the file. ``eta`` is one over the penalty of the augmented Lagrangian."""

    name: ClassVar[str] = "fedadmm"
    shares: ClassVar[str] = "how every client's x_i + eta z_i changes in each round"

    def start_clients(self, x: Tensor) -> State:
        return {"x": x, "z": torch.zeros_like(x)}

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        centre = message.xbar - self.eta * state["z"]
        x = descend(plan, gradient, state["x"], centre, 1 / self.eta)
        z = state["z"] + (x - message.xbar) / self.eta
        change = (x - state["x"]) + self.eta * (z - state["z"])
        return {"x": x, "z": z}, dense(change), None
