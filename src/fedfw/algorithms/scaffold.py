"""SCAFFOLD with a projection: gradient steps that control variates correct, so that local steps do
not drift.

    client i:  y <- xbar;   K times:  y <- y - lr_t (grad f_i(P(y)) - c_i + c)
               c_i <- c_i - c + (xbar - y) / (K lr_t), the mean of its K gradients;   it sends how c_i changes
    server:    xbar <- P(mean of the y over those present),   c <- mean of all c_i

This is the paper's option II. Its clients also send y - xbar, which is -K lr_t (change of c_i + c)
and can therefore be left out: it is one vector up instead of two. Means have the weights w_i. The
step of the server is 1.

The paper has no constraint. Here gradients are taken at the projected point and steps at the other
one, as in dual averaging. A minimiser x* is then a fixed point with any number of local steps, also
at the border of D: with c_i = grad f_i(x*) and c = grad F(x*) a client's y is x* - k lr_t c, whose
projection is x*, so it sees grad f_i(x*) in every step. Gradients at y itself would be gradients
outside of D, and their mean another one.

Reference: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic controlled
averaging for federated learning" (2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Aggregate,
    Algorithm,
    Contract,
    Gradient,
    Kept,
    Lmo,
    Message,
    Payload,
    Plan,
    Reveals,
    Server,
    State,
    Up,
)
from fedfw.algorithms.projected import ProjectedAlgorithm
from fedfw.atoms import Atom

REMEMBERS = {"x": Kept.REBUILT, "c": Kept.REBUILT}


@dataclass(frozen=True)
class KeepsControls(Algorithm):
    """Clients begin every round at xbar and remember a control variate c_i; c is the mean of all of
    them.

    A c_i is zero before the client's first visit. A client sends how its c_i changes, as all that
    it sends or as the second part of it. Both sides add the change up in the same way, so the
    server can hand a client its c_i back. The mean has the weights w_i and is kept in float64: it
    is a sum of thousands of small terms.
    """

    def start_clients(self, x: Tensor) -> State:
        return {"x": x[:, :0], "c": torch.zeros_like(x)}

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"c": torch.zeros_like(x, dtype=torch.float64)})

    def broadcast(
        self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int
    ) -> tuple[Server, Message]:
        return server, Message(t, server.xbar, {"c": server.vectors["c"].to(server.xbar.dtype)})

    def apply(
        self, plan: Plan, shared: State, message: Message, payload: Mapping[str, Atom]
    ) -> State:
        change = payload["vector"] if self.contract.up is Up.VECTOR else payload["change"]
        return shared | {"c": shared["c"] + change.dense()}

    def regroup(self, server: Server, clients: State, weights: Tensor | None = None) -> Server:
        c = clients["c"].double()
        return replace(
            server, vectors={"c": (c if weights is None else c * weights[:, None]).mean(0)}
        )


def mean_renewed(plan: Plan, server: Server, changes: Tensor) -> dict[str, Tensor]:
    """The server's c when its clients' weighted changes add up to ``changes`` (p,)."""
    return {"c": server.vectors["c"] + changes.double() / plan.n}


@dataclass(frozen=True)
class Scaffold(KeepsControls, ProjectedAlgorithm):
    """SCAFFOLD with a projection: gradient steps that control variates correct.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the local gradient steps; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.Scaffold(fedfw.Box(-1.0, 1.0), lr=0.1), rounds=20, local_steps=5)
    >>> round(float(run.x), 2)
    1.0
    """

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD"
    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        down=("xbar", "c"),
        remembers=REMEMBERS,
        reveals=Reveals.GRADIENTS,
        shares="how the mean of every client's local gradients changes from one of its rounds to the next",
        weighted=True,
    )

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        y = message.xbar.expand_as(state["c"])
        total, correction = torch.zeros_like(y), message.vectors["c"] - state["c"]
        for k in range(plan.local_steps):
            _, g = gradient(plan.project(y) if k else y, plain=True)  # xbar lies in the set already
            total += g
            y = y - plan.lr_at(message.t) * (g + correction)
        change = total / plan.local_steps - state["c"]
        return {}, {"vector": change}

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        c = server.vectors["c"].to(server.xbar.dtype)
        x = server.xbar - plan.local_steps * plan.lr_at(t) * (aggregate.mean + c)
        return Server(plan.project(x), mean_renewed(plan, server, aggregate.total))
