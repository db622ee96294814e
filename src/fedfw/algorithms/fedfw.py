"""FedFW: Frank-Wolfe on every client, held together by a penalty.

Each client i keeps its own x_i, which the server never overwrites. In round t, with xbar the mean of all x_i,

    g_i = w_i grad f_i(x_i) + lam_t (x_i - xbar)
    s_i = argmin over s in D of <g_i, s>                 (the oracle; one atom, all that is sent)
    x_i <- (1 - eta_t) x_i + eta_t s_i
    xbar <- xbar + (eta_t / n) sum over the present of (s_i - x_i)

Reference: Dadras, Banerjee, Prakhya and Yurtsever, "Federated Frank-Wolfe Algorithm" (2024). Momentum, which is not in
the paper, replaces w_i grad f_i(x_i) by d_i <- beta d_i + (1 - beta) w_i grad f_i(x_i).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfw.algorithms.base import Message, Plan, Rates, State
from fedfw.algorithms.oracle_steps import OracleAlgorithm, pulled, running_average


@dataclass(frozen=True)
class FedFW(OracleAlgorithm):
    """See the top of the file."""

    name: ClassVar[str] = "fedfw"

    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        if self.momentum:
            state = running_average(state, a, 1 - self.momentum)
            a = state["d"]
        return state, pulled(a, state["x"], message.xbar, rates.lam)
