"""Anchored FedFW: now and then every client is given its dual at once.

In rounds t = 1, m+1, 2m+1, ... client i computes a_i = w_i grad f_i(xbar). Only the sum is needed:

    A = (1/n) sum a_i = grad F(xbar) / n        (dense, sent down once)
    y_i = A - a_i,   x_i <- xbar

and in every round, with atoms only,

    g_i = w_i grad f_i(x_i) + y_i (+ lam_t (x_i - xbar), lam_0 = 0 by default).

With momentum the corrected direction is averaged, d_i <- beta d_i + (1-beta) (w_i grad f_i(x_i) + y_i), and not reset
at anchors.
F(xbar^t) - F* <= (2 + 24 (m-1)) L' D^2 / t for convex losses with everyone present, L' = n max w_i L_i.

It shares sums of gradients with the server, which plain FedFW never does. At an anchor the server therefore knows the
exact Frank-Wolfe gap. With absentees the mean is over those present, and y_i - ybar is used as in FedFW+; for that the
participants' old y_i are summed too, a second dense vector up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import Anchor, Gradient, Message, Plan, Rates, Server, State
from fedfw.algorithms.oracle_steps import OracleAlgorithm, running_average


@dataclass(frozen=True)
class FedFWAnchored(OracleAlgorithm):
    """See the top of the file."""

    penalty: float | str = 0.0
    anchor_every: int = 20

    name: ClassVar[str] = "fedfw-anchored"
    sends_answers: ClassVar[bool] = False
    sends_exact_sums: ClassVar[bool] = True
    shares: ClassVar[str] = "at each anchor the sum of the gradients of those present"
    may_relax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.anchor_every, int) or self.anchor_every < 1:
            raise ValueError(f"anchor_every={self.anchor_every!r}, expected a whole number of at least 1")

    def passes(self, local_steps: int, share: float) -> float:
        return super().passes(local_steps, share) + 1 / self.anchor_every

    def is_anchor(self, t: int) -> bool:
        return (t - 1) % self.anchor_every == 0

    def start_clients(self, x: Tensor) -> State:
        return super().start_clients(x) | {"y": torch.zeros_like(x)}

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"ybar": torch.zeros_like(x)})

    def anchor(
        self, plan: Plan, server: Server, states: Sequence[State], gradients: Sequence[Gradient], t: int
    ) -> tuple[Server, list[State], Anchor] | None:
        if not self.is_anchor(t):
            return None
        xbar = server.xbar
        present = sum(len(state["x"]) for state in states)
        told = [g(xbar.expand_as(state["x"]), full=True) for state, g in zip(states, gradients, strict=True)]
        a = [gradient for _, gradient in told]
        mean = torch.stack([piece.sum(0) for piece in a]).sum(0) / present
        learnt = Anchor(sum(float(loss.double().sum()) for loss, _ in told), plan.n * mean)
        # The new y_i of those present add up to zero; what they held before leaves the sum.
        leaving = torch.stack([state["y"].sum(0) for state in states]).sum(0)
        moved = torch.stack([state["x"].sum(0) for state in states]).sum(0) - present * xbar
        fresh = [
            state | {"y": mean - piece, "x": xbar.expand_as(state["x"]).clone()}
            for state, piece in zip(states, a, strict=True)
        ]
        if present == plan.n:
            return replace(server, vectors={"ybar": torch.zeros_like(xbar)}), fresh, learnt
        ybar = server.vectors["ybar"] - leaving / plan.n
        return replace(server, xbar=xbar - moved / plan.n, vectors={"ybar": ybar}), fresh, learnt

    def regroup(self, server: Server, clients: State) -> Server:
        return replace(super().regroup(server, clients), vectors={"ybar": clients["y"].mean(0)})

    def broadcast(self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int) -> tuple[Server, Message]:
        ybar = server.vectors["ybar"]
        return server, Message(t, server.xbar, {"ybar": ybar} if bool(ybar.any()) else {})

    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        g = a + state["y"]
        if "ybar" in message.vectors:
            g -= message.vectors["ybar"]
        if plan.lam_0:
            g += rates.lam * (state["x"] - message.xbar)
        if self.momentum:
            state = running_average(state, g, 1 - self.momentum)
            g = state["d"]
        return state, g
