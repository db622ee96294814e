"""FedFW-sto: FedFW from minibatch gradients, averaged over the rounds so that their noise dies out.

    d_i <- (1 - rho_t) d_i + rho_t w_i grad f_i(x_i; minibatch)          (a client's first d_i is its first gradient)
    g_i = d_i + lam_t (x_i - xbar)

and FedFW's step. Its own schedule has rho_t = 4 / (t+7)^(2/3). With full batches and rho = 1 it is FedFW.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedfw.algorithms.base import Message, Plan, Rates, State
from fedfw.algorithms.oracle_steps import OracleAlgorithm, pulled, running_average
from fedfw.schedules import Schedule, nonconvex, stochastic


@dataclass(frozen=True)
class FedFWSto(OracleAlgorithm):
    """See the top of the file. Its averaging takes the place of momentum."""

    name: ClassVar[str] = "fedfw-sto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum:
            raise ValueError(f"momentum={self.momentum}: FedFW-sto averages gradients by its schedule's rho instead")

    def make_schedule(self, convex: bool | None, p: float, horizon: int) -> Schedule:
        if self.schedule is None and convex is False:  # steps that keep a network's start, the same averaging
            return replace(nonconvex(p, horizon), rho=stochastic().rho)
        return super().make_schedule(convex, p, horizon)

    def default_schedule(self, convex: bool | None) -> str:
        return "stochastic"

    @property
    def exact(self) -> bool:
        return False

    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        state = running_average(state, a, rates.rho)
        return state, pulled(state["d"], state["x"], message.xbar, rates.lam)
