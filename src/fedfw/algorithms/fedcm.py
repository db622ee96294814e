"""FedCM: gradient steps along a momentum that all clients share.

    x_i <- xbar;   K times:  x_i <- x_i - lr_t ((1 - beta) grad f_i(x_i) + beta m)
    m <- (xbar - mean of the x_i) / (K lr_t);   xbar <- P(mean of the x_i)

The mean is over those present, with the weights w_i; m begins at zero. beta is 1 - alpha of the
paper; with beta = 0 it is FedAvg. MimeLite with momentum (Karimireddy et al. 2021) takes the same
local steps; its m averages gradients at xbar, which costs one more pass and one more vector.

Reference: Xu, Wang, Wang and Yao, "FedCM: Federated learning with client-level momentum" (2021);
Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich and Suresh, "Breaking the centralized barrier for
cross-device federated learning" (2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.algorithms.contract import Aggregate, Contract, Message, Plan, Server, Setting
from fedfw.algorithms.projected import LocalChanges
from fedfw.algorithms.scheduled import NETWORK_MOMENTUM, Beta


@dataclass(frozen=True)
class FedCM(LocalChanges):
    """FedCM: gradient steps along a shared momentum, and a projection.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the local gradient steps; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.
    momentum : float or "auto"
        beta, the weight of the shared momentum in every local step; "auto" is 0.9.

    Examples
    --------
    >>> import fedfw
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.FedCM(fedfw.Box(-1.0, 1.0), lr=0.1), rounds=40)
    >>> round(float(run.x), 2)
    1.0
    """

    momentum: Beta = NETWORK_MOMENTUM

    name: ClassVar[str] = "fedcm"
    title: ClassVar[str] = "FedCM"
    contract: ClassVar[Contract] = replace(LocalChanges.contract, down=("xbar", "m"))

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"lr": cls.few_steps(setting, (0.03, 0.1, 0.3)), "momentum": (0.8, 0.9)}

    def resolved(self, setting: Setting) -> Self:
        return replace(self, momentum=NETWORK_MOMENTUM) if self.momentum == "auto" else self

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"m": torch.zeros_like(x)})

    def slope(self, message: Message, g: Tensor) -> Tensor:
        return torch.lerp(g, message.vectors["m"].expand_as(g), float(self.momentum))

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        m = aggregate.mean / -(plan.local_steps * plan.lr_at(t))
        return Server(plan.project(server.xbar + aggregate.mean), {"m": m})
