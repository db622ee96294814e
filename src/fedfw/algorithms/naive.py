"""The scheme that fails, for teaching: local Frank-Wolfe steps from xbar, then averaging.

    x_i <- xbar;  K times:  x_i <- (1 - eta_t) x_i + eta_t argmin over s in D of <grad f_i(x_i), s>;  xbar <- mean x_i

Its fixed points are not minimisers of F when clients differ: for f_1 = (x-3)^2, f_2 = (x+1)^2 on [-1, 1] it stays at 0,
while F is least at 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import Message, Plan, Rates, Server, State, Upload
from fedfw.algorithms.oracle_steps import OracleAlgorithm, move_mean


@dataclass(frozen=True)
class NaiveFW(OracleAlgorithm):
    """See the top of the file. It has neither penalty nor momentum."""

    penalty: float | str = 0.0

    name: ClassVar[str] = "naive"
    has_certificate: ClassVar[bool] = False
    keeps_points: ClassVar[bool] = False
    may_relax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty or self.momentum:
            raise ValueError("NaiveFW has neither penalty nor momentum")

    def begin_round(self, plan: Plan, state: State, message: Message) -> State:
        return state | {"x": message.xbar.expand_as(state["x"])}

    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        return state, a

    def server_step(self, plan: Plan, server: Server, uploads: Sequence[Upload], t: int) -> Server:
        eta, _ = plan.mixing(t)
        present = sum(len(upload.who) for upload in uploads)
        total = torch.zeros_like(server.xbar)
        for upload in uploads:
            upload.atoms.add_sum_to(total)
        return replace(server, xbar=move_mean(server.xbar, 1 - eta, eta / present, total))
