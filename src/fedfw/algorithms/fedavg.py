"""FedAvg with a projection, and FedProx: local gradient steps from xbar, then the mean, projected.

    x_i <- xbar;   K times:  x_i <- a gradient step on f_i(x_i) + mu/2 ||x_i - xbar||^2
    xbar <- P(xbar - mean of the xbar - x_i)

The mean is over those present, with the weights w_i. With mu > 0 it is FedProx. With K = 1 it is
projected gradient descent on F, and its only fixed points are the minimisers; with more local steps
they are not, when clients differ.

References: McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-efficient learning of
deep networks from decentralized data" (2017); Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith,
"Federated optimization in heterogeneous networks" (2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedfw.algorithms.contract import (
    Affine,
    Client,
    Kind,
    Message,
    Oracles,
    Payload,
    Reveals,
    Run,
    State,
    Sums,
    Weight,
)
from fedfw.algorithms.learning_rate import GradientMethod, descend
from fedfw.options import option


@dataclass(frozen=True, kw_only=True)
class FedAvg(GradientMethod):
    """FedAvg with a projection; with a pull to the server's model it is FedProx.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    mu : float
        FedProx's pull to the server's model.
    lr, decay, compress, compress_down
        See `GradientMethod`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.FedAvg(fedfw.Box(-1.0, 1.0)), rounds=20)
    >>> round(float(run.x), 2)
    1.0
    """

    mu: Annotated[float, option("pull to the server's model: FedAvg with it is FedProx", ge=0)] = (
        0.0
    )

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    revision: ClassVar[int] = 3
    reveals: ClassVar[Reveals] = Reveals.MODELS
    shares: ClassVar[str] = "every client's local model in each round"
    weighted: ClassVar[bool] = True
    tuned: ClassVar[float] = 1.6
    uploads: ClassVar[Mapping[str, Kind]] = {"update": Kind.VALUE}

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local gradient steps from xbar, pulled to it by mu."""
        start = msg.xbar.expand(oracles.m, -1)
        x = descend(start, msg, oracles, msg.xbar, self.mu, times=Weight.ONE)
        return client.private, {"update": msg.xbar - x}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        return {"xbar": run.constraint.project(server["xbar"] - sums.mean("update"))}
