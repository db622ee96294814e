"""Frank-Wolfe itself, with the data still on the clients: every round each one sends its whole gradient.

    x <- (1 - eta_t) x + eta_t argmin over s in D of <grad F(x), s>,    grad F(x) = sum_i w_i grad f_i(x)

The central reference, and what FedFW saves: dense gradients instead of atoms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import Evidence, Gradient, Lmo, Message, Plan, Rates, Server, State, Upload
from fedfw.algorithms.oracle_steps import OracleAlgorithm
from fedfw.atoms import Atom, Dense


@dataclass(frozen=True)
class FrankWolfe(OracleAlgorithm):
    """See the top of the file. It has no penalty; momentum averages the gradient of F."""

    penalty: float | str = 0.0

    name: ClassVar[str] = "frank-wolfe"
    sends_answers: ClassVar[bool] = False
    shares: ClassVar[str] = "every client's whole gradient in each round"
    has_certificate: ClassVar[bool] = False
    keeps_points: ClassVar[bool] = False
    may_relax: ClassVar[bool] = False
    may_step_locally: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty:
            raise ValueError(f"penalty={self.penalty}: FrankWolfe has one point and needs no penalty")

    def start_clients(self, x: Tensor) -> State:
        return {"x": x}

    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        return state, a

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        x = message.xbar.expand_as(state["x"]).clone()
        _, a = gradient(x)
        return {"x": x}, Dense(shape=(a.shape[1],), batched=True, precision=a.dtype, values=a), None

    def server_step(self, plan: Plan, server: Server, uploads: Sequence[Upload], t: int) -> Server:
        present = sum(len(upload.who) for upload in uploads)
        g = torch.zeros_like(server.xbar)
        for upload in uploads:
            upload.atoms.add_sum_to(g, plan.n / present)
        vectors = server.vectors
        if self.momentum:
            g = torch.lerp(vectors["d"], g, 1 - self.momentum) if "d" in vectors else g
            vectors = {"d": g}
        atom = plan.lmo(g, t)
        return replace(server, xbar=atom.step(server.xbar.clone(), plan.rates(t).eta), vectors=vectors)
