"""FedDR: Douglas-Rachford splitting with an inexact proximal step on each client. The paper's baseline.

    y_i <- y_i + alpha (xbar - x_i)
    x_i ~ prox of eta h_i at y_i:   K gradient steps on h_i(x) + ||x - y_i||^2 / (2 eta), from the x_i of before
    xhat_i = 2 x_i - y_i
    xtilde = mean of all xhat_i, the absent ones' last included;   xbar = P(xtilde)

Clients send the change of xhat_i. The projected point goes to the clients and never into xtilde. At a fixed point
x_i = xbar = x* and y_i = x* + eta grad h_i(x*), so xtilde = x* - eta grad F(x*) and x* = P(xtilde): a minimiser.

Reference: Tran-Dinh, Pham, Phan and Nguyen, "FedDR: randomized Douglas-Rachford splitting algorithms for nonconvex
federated composite optimization" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfw.algorithms.base import Evidence, Gradient, Lmo, Message, Plan, State
from fedfw.algorithms.projected import SplittingAlgorithm, dense, descend
from fedfw.atoms import Atom


@dataclass(frozen=True)
class FedDR(SplittingAlgorithm):
    """See the top of the file. ``alpha`` is the relaxation, below 2; ``eta`` the parameter of the proximal step."""

    alpha: float = 1.9

    name: ClassVar[str] = "feddr"
    shares: ClassVar[str] = "how every client's reflected point 2 x_i - y_i changes in each round"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < 2:
            raise ValueError(f"alpha={self.alpha}, expected a number above 0 and below 2")

    def start_clients(self, x: Tensor) -> State:
        return {"x": x, "y": x.clone(), "xhat": x.clone()}

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        y = state["y"] + self.alpha * (message.xbar - state["x"])
        x = descend(plan, gradient, state["x"], y, 1 / self.eta)
        xhat = 2 * x - y
        return {"x": x, "y": y, "xhat": xhat}, dense(xhat - state["xhat"]), None
