"""FedDA: federated dual averaging. What is averaged is the dual z, which no projection touches.

    z_i <- z;   K times:  z_i <- z_i - lr grad f_i(P(x^1 + z_i))
    z <- z + server_lr (mean over those present of z_i - z);   xbar = P(x^1 + z)

The mean has the weights w_i; z starts at 0 and P, the projection, is the mirror map of the squared
distance from the start x^1. The server sends z, from which a client computes its points itself.
Where x* = P(x^1 + z), z moves along -grad F(x*), which the projection takes back to x*: minimisers
are fixed points of xbar, with one local step.

Reference: Yuan, Zaheer and Reddi, "Federated composite optimization" (2021).
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Aggregate,
    Contract,
    Gradient,
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
from fedfw.options import option


@dataclass(frozen=True)
class FedDA(ProjectedAlgorithm):
    """FedDA: federated dual averaging; clients and server average a dual vector that no projection
    touches.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the local gradient steps; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.
    server_lr : float
        Step size of the server.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.FedDA(fedfw.Box(-1.0, 1.0)), rounds=20)
    >>> round(float(run.x), 2)
    1.0
    """

    server_lr: Annotated[float, option("server's step size", gt=0)] = 1.0

    name: ClassVar[str] = "fedda"
    title: ClassVar[str] = "FedDA"
    revision: ClassVar[int] = 2
    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        down=("z",),
        reveals=Reveals.GRADIENTS,
        shares="every client's sum of local gradients in each round",
        weighted=True,
    )
    tuned_step: ClassVar[float] = 1.6

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"start": x.clone(), "z": torch.zeros_like(x)})

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        start = state["x"]  # a client's own copy of x^1, never changed
        z = message.vectors["z"].expand_as(start)
        for _ in range(plan.local_steps):
            _, a = gradient(plan.project(start + z), plain=True)
            z = z - plan.lr_at(message.t) * a
        return {}, {"vector": z - message.vectors["z"]}

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        z = server.vectors["z"] + (self.server_lr / aggregate.weight) * aggregate.total
        xbar = plan.project(server.vectors["start"] + z)
        return replace(server, xbar=xbar, vectors=server.vectors | {"z": z})
