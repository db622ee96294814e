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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.algorithms.averaging import DEFAULT_MOMENTUM, MomentumOption
from fedfw.algorithms.contract import Affine, Message, Present, Run, State, Sums
from fedfw.algorithms.learning_rate import few_lrs
from fedfw.algorithms.local_changes import LocalChanges
from fedfw.algorithms.rules import StepRule
from fedfw.algorithms.setting import Setting


@dataclass(frozen=True, kw_only=True)
class FedCM(LocalChanges):
    """FedCM: gradient steps along a shared momentum, and a projection.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    momentum : float or "auto"
        beta, the weight of the shared momentum in every local step; "auto" is 0.9.
    lr, decay, compress, compress_down
        See `GradientMethod`.

    Examples
    --------
    >>> import fedfw
    >>> algorithm = fedfw.FedCM(fedfw.Box(-1.0, 1.0), lr=0.1)
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=40)
    >>> round(float(run.x), 2)
    1.0
    """

    momentum: MomentumOption = DEFAULT_MOMENTUM

    name: ClassVar[str] = "fedcm"
    title: ClassVar[str] = "FedCM"
    downloads: ClassVar[tuple[str, ...]] = ("m",)

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"lr": few_lrs(setting, (0.03, 0.1, 0.3)), "momentum": (0.8, 0.9)}

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        chosen, rule = super().configure(setting)
        beta = DEFAULT_MOMENTUM if self.momentum == "auto" else self.momentum
        return replace(chosen, momentum=beta), rule

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.clone(), "m": torch.zeros_like(x)}

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        return server, {"m": server["m"]}

    def slope(self, msg: Message, g: Tensor) -> Tensor:
        return torch.lerp(g, msg.vectors["m"].expand_as(g), float(self.momentum))

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Add the mean change; over the length of the way it is the next momentum."""
        d = sums.mean("update")
        m = d / -(len(msg.rates) * msg.rates[0].eta)
        return {"xbar": run.constraint.project(server["xbar"] + d), "m": m}
