"""Control variates c_i as SCAFFOLD keeps them: zero before a client's first visit; c is their mean over all clients.

A client sends how its c_i changes. Both sides add the change up in the same way, so the server can hand a client its
c_i back. The mean has the weights w_i and is kept in float64: it is a sum of thousands of small terms.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfw.algorithms.base import Algorithm, Kept, Message, Plan, Server, State

REMEMBERS = {"x": Kept.REBUILT, "c": Kept.REBUILT}


@dataclass(frozen=True)
class KeepsControls(Algorithm):
    """An algorithm whose clients begin every round at xbar and remember a control variate."""

    def start_clients(self, x: Tensor) -> State:
        return {"x": x[:, :0], "c": torch.zeros_like(x)}

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"c": torch.zeros_like(x, dtype=torch.float64)})

    def broadcast(self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int) -> tuple[Server, Message]:
        return server, Message(t, server.xbar, {"c": server.vectors["c"].to(server.xbar.dtype)})

    def regroup(self, server: Server, clients: State, weights: Tensor | None = None) -> Server:
        c = clients["c"].double()
        return replace(server, vectors={"c": (c if weights is None else c * weights[:, None]).mean(0)})


def renewed(state: State, change: Tensor) -> State:
    """The memory of m clients whose control variates change by so much, (m, p)."""
    return state | {"c": state["c"] + change}


def mean_renewed(plan: Plan, server: Server, changes: Tensor) -> dict[str, Tensor]:
    """The server's c when its clients' weighted changes add up to ``changes`` (p,)."""
    return {"c": server.vectors["c"] + changes.double() / plan.n}
