"""FedAvg with a projection, and FedProx: local gradient steps from xbar, the mean of the local models, projected.

    x_i <- xbar;   K times:  x_i <- a gradient step on h_i(x_i) + mu/2 ||x_i - xbar||^2;   xbar <- P(mean of the x_i)

The mean is over those present. With mu > 0 it is FedProx. With K = 1 it is projected gradient descent on F, and its
only fixed points are the minimisers; with more local steps they are not, when clients differ.

References: McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-efficient learning of deep networks from
decentralized data" (2017); Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous
networks" (2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedfw.algorithms.base import Evidence, Gradient, Lmo, Message, Plan, Server, State, Upload
from fedfw.algorithms.projected import ProjectedAlgorithm, dense, descend, total
from fedfw.atoms import Atom


@dataclass(frozen=True)
class FedAvg(ProjectedAlgorithm):
    """See the top of the file. ``mu`` is FedProx's pull to the server's model."""

    mu: float = 0.0

    name: ClassVar[str] = "fedavg"
    shares: ClassVar[str] = "every client's local model in each round"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"mu={self.mu}, expected a number of at least 0")

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        x = descend(plan, gradient, message.xbar.expand_as(state["x"]), message.xbar, self.mu)
        return state, dense(x), None

    def server_step(self, plan: Plan, server: Server, uploads: Sequence[Upload], t: int) -> Server:
        models, present = total(server, uploads)
        return replace(server, xbar=plan.project(models / present))
