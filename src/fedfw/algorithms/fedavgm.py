"""FedAvgM: FedAvg whose server keeps a velocity.

    x_i <- xbar;   K times:  x_i <- x_i - lr_t grad f_i(x_i)
    v <- beta v + (mean of the x_i - xbar);   xbar <- P(xbar + v)

The mean is over those present, with the weights w_i; v begins at zero. With K = 1 it is gradient
descent with momentum.

Reference: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for
federated visual classification" (2019).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import Aggregate, Plan, Server, Setting
from fedfw.algorithms.projected import LocalChanges
from fedfw.options import option


@dataclass(frozen=True)
class FedAvgM(LocalChanges):
    """FedAvgM: FedAvg with momentum at the server, and a projection.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the local gradient steps; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.
    server_momentum : float
        beta, the weight of the past in the server's velocity.

    Examples
    --------
    >>> import fedfw
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.FedAvgM(fedfw.Box(-1.0, 1.0), lr=0.1), rounds=20)
    >>> round(float(run.x), 2)
    1.0
    """

    server_momentum: Annotated[
        float, option("weight of the past in the server's velocity", ge=0, lt=1)
    ] = 0.9

    name: ClassVar[str] = "fedavgm"
    title: ClassVar[str] = "FedAvgM"

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"lr": cls.few_steps(setting, (0.01, 0.03, 0.1)), "server_momentum": (0.7, 0.9)}

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"v": torch.zeros_like(x)})

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        v = self.server_momentum * server.vectors["v"] + aggregate.mean
        return Server(plan.project(server.xbar + v), {"v": v})
