"""Clients begin every round at xbar, take gradient steps, and send how far they came.

    x_i <- xbar;   K times:  x_i <- x_i - lr_t g;    g from grad f_i(x_i)
    d = mean of the x_i - xbar over those present, with the weights w_i

What a server makes of d is the method: `FedAvgM`, `FedAdam`, `FedCM`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfw.algorithms.contract import (
    Client,
    Kind,
    Message,
    Oracles,
    Payload,
    Reveals,
    Run,
    State,
    Weight,
)
from fedfw.algorithms.learning_rate import GradientMethod


@dataclass(frozen=True, kw_only=True)
class LocalChanges(GradientMethod):
    """Local gradient steps from xbar; clients send how far they came, x_i - xbar by default."""

    reveals: ClassVar[Reveals] = Reveals.MODELS
    shares: ClassVar[str] = "how every client's local model changes in each round"
    weighted: ClassVar[bool] = True
    uploads: ClassVar[Mapping[str, Kind]] = {"update": Kind.VALUE}

    def slope(self, msg: Message, g: Tensor) -> Tensor:
        """Return the direction (m, p) of a local step, from the gradients g (m, p)."""
        return g

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local steps along the method's slope, and send the change."""
        x = msg.xbar.expand(oracles.m, -1)
        for rates in msg.rates:
            x = x - rates.eta * self.slope(msg, oracles.gradient(x, times=Weight.ONE))
        return client.private, {"update": x - msg.xbar}
