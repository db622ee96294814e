"""FedFW+: FedFW with a dual vector y_i on each client, which learns what keeps the clients apart.

Once a round  y_i <- y_i + lam_0 (x_i - xbar),  then FedFW's step with

    g_i = w_i grad f_i(x_i) + lam_t (x_i - xbar) + (y_i - ybar),    ybar = (1/n) sum of all y_j.

With everyone present ybar is zero. With absentees only participants update y_i, the sum drifts, and without ybar the
limit is wrong; the server knows every x_i, so it computes ybar itself and sends it down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import Message, Plan, Rates, Server, State
from fedfw.algorithms.oracle_steps import OracleAlgorithm, pulled, running_average


@dataclass(frozen=True)
class FedFWPlus(OracleAlgorithm):
    """See the top of the file."""

    name: ClassVar[str] = "fedfw+"

    def start_clients(self, x: Tensor) -> State:
        return super().start_clients(x) | {"y": torch.zeros_like(x)}

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"ybar": torch.zeros_like(x)})

    def broadcast(self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int) -> tuple[Server, Message]:
        ybar = server.vectors["ybar"]
        if len(who) == plan.n and not bool(ybar.any()):  # the changes of the y_i add up to zero
            return server, Message(t, server.xbar)
        ybar = ybar + (plan.lam_0 / plan.n) * (x - server.xbar).sum(0)
        return replace(server, vectors={"ybar": ybar}), Message(t, server.xbar, {"ybar": ybar})

    def regroup(self, server: Server, clients: State) -> Server:
        return replace(super().regroup(server, clients), vectors={"ybar": clients["y"].mean(0)})

    def begin_round(self, plan: Plan, state: State, message: Message) -> State:
        return state | {"y": state["y"] + plan.lam_0 * (state["x"] - message.xbar)}

    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        if self.momentum:
            state = running_average(state, a, 1 - self.momentum)
            a = state["d"]
        g = pulled(a, state["x"], message.xbar, rates.lam).add_(state["y"])
        if "ybar" in message.vectors:
            g -= message.vectors["ybar"]
        return state, g
