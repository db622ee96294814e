"""FedAdam: local gradient steps, and a step of Adam at the server along the mean change.

    x_i <- xbar;   K times:  x_i <- x_i - lr_t grad f_i(x_i);   d = mean of the x_i - xbar
    m <- beta1 m + (1 - beta1) d,   v <- beta2 v + (1 - beta2) d^2
    xbar <- P(xbar + server_lr_t (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + tau))

The mean is over those present, with the weights w_i; m and v begin at zero. Adam's division by 1 -
beta^t, which the paper leaves out, is that of torch.optim.Adam; t counts rounds, those that no
client joined included. A linear decay is one of both step sizes, since Adam's step hardly depends
on the size of d. P is the Euclidean projection, and Adam's step is scaled coordinate by coordinate:
where the minimiser lies on the border of a set that is no box, it does not rest there.

Reference: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive federated
optimization" (2021).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import Affine, Message, Run, State, Sums
from fedfw.algorithms.learning_rate import few_lrs
from fedfw.algorithms.local_changes import LocalChanges
from fedfw.algorithms.setting import Setting
from fedfw.options import option

Beta1 = Annotated[float, option("weight of the past in Adam's first moment", ge=0, lt=1)]
Beta2 = Annotated[float, option("weight of the past in Adam's second moment", ge=0, lt=1)]
Tau = Annotated[float, option("what Adam adds to the root of the second moment", gt=0)]


@dataclass(frozen=True, kw_only=True)
class FedAdam(LocalChanges):
    """FedAdam: FedAvg with a step of Adam at the server, and a projection.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    server_lr : float
        Step size of the server; it decays with ``lr``.
    beta1 : float
        Weight of the past in the mean change.
    beta2 : float
        Weight of the past in the mean square of the change.
    tau : float
        What is added to the root of the second moment.
    lr, decay, compress, compress_down
        See `GradientMethod`.

    Examples
    --------
    >>> import fedfw
    >>> algorithm = fedfw.FedAdam(fedfw.Box(-1.0, 1.0), lr=0.1, server_lr=0.1)
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=40)
    >>> round(float(run.x), 2)
    1.0
    """

    server_lr: Annotated[float, option("server's step size", gt=0)] = 0.01
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    tau: Tau = 1e-3

    name: ClassVar[str] = "fedadam"
    title: ClassVar[str] = "FedAdam"

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"lr": few_lrs(setting, (0.03, 0.1, 0.3)), "server_lr": (0.003, 0.01)}

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.clone(), "m": torch.zeros_like(x), "v": torch.zeros_like(x)}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Take Adam's step along the mean change, and project."""
        d = sums.mean("update")
        m, v = moments(server["m"], server["v"], d, self.beta1, self.beta2)
        step = adam_step(m, v, msg.t, self.beta1, self.beta2, self.tau)
        x = server["xbar"] + self.server_lr * msg.rates[0].decay * step
        return {"xbar": run.constraint.project(x), "m": m, "v": v}


def moments(m: Tensor, v: Tensor, g: Tensor, beta1: float, beta2: float) -> tuple[Tensor, Tensor]:
    """Return Adam's moments after one more gradient g."""
    return beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g.square()


def adam_step(m: Tensor, v: Tensor, t: int, beta1: float, beta2: float, tau: float) -> Tensor:
    """Return Adam's step for a step size of 1, when t gradients have been averaged."""
    return (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + tau)
