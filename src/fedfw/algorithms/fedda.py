"""FedDA: federated dual averaging. What is averaged is the dual z, which no projection touches.

    z_i <- z;   K times:  z_i <- z_i - lr grad f_i(P(x^1 + z_i))
    z <- z + server_lr (mean over those present of z_i - z);   xbar = P(x^1 + z)

The mean has the weights w_i; z starts at 0 and P, the projection, is the mirror map of the squared
distance from the start x^1. The server sends z, from which a client computes its points itself.
Where x* = P(x^1 + z), z moves along -grad F(x*), which the projection takes back to x*: minimisers
are fixed points of xbar, with one local step.

Reference: Yuan, Zaheer and Reddi, "Federated composite optimization" (2021).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Affine,
    Client,
    Message,
    Oracles,
    Payload,
    Reveals,
    Run,
    State,
    Sums,
    Weight,
)
from fedfw.algorithms.local_changes import LocalChanges
from fedfw.options import option


@dataclass(frozen=True, kw_only=True)
class FedDA(LocalChanges):
    """FedDA: federated dual averaging; clients and server average a dual vector that no projection
    touches.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    server_lr : float
        Step size of the server.
    lr, decay, compress, compress_down
        See `GradientMethod`.

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
    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = "every client's sum of local gradients in each round"
    tuned: ClassVar[float] = 1.6

    def init_client(self, run: Run, x: Tensor) -> Client:
        return Client(shared={}, private={"start": x.clone()})  # x^1, which never changes

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.clone(), "start": x.clone(), "z": torch.zeros_like(x)}

    def model_to_send(self, server: State) -> Tensor:
        return server["z"]

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take dual steps z <- z - eta grad f_i(w), where w is the projection of start + z, and
        send how z changes.
        """
        start = client.private["start"]
        z = msg.xbar.expand_as(start)
        for rates in msg.rates:
            w = run.constraint.project(start + z, batch=True)
            z = z - rates.eta * oracles.gradient(w, times=Weight.ONE)
        return client.private, {"update": z - msg.xbar}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        z = server["z"] + self.server_lr * sums.mean("update")
        return {**server, "xbar": run.constraint.project(server["start"] + z), "z": z}
