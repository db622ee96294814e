"""FedAvgM: FedAvg whose server keeps a velocity.

    x_i <- xbar;   K times:  x_i <- x_i - lr_t grad f_i(x_i)
    v <- beta v + (mean of the x_i - xbar);   xbar <- P(xbar + v)

The mean is over those present, with the weights w_i; v begins at zero. With K = 1 it is gradient
descent with momentum.

Reference: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for
federated visual classification" (2019).
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


@dataclass(frozen=True, kw_only=True)
class FedAvgM(LocalChanges):
    """FedAvgM: FedAvg with momentum at the server, and a projection.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    server_momentum : float
        beta, the weight of the past in the server's velocity.
    lr, decay, compress, compress_down
        See `GradientMethod`.

    Examples
    --------
    >>> import fedfw
    >>> algorithm = fedfw.FedAvgM(fedfw.Box(-1.0, 1.0), lr=0.1)
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), algorithm, rounds=20)
    >>> round(float(run.x), 2)
    1.0
    """

    server_momentum: Annotated[
        float, option("weight of the past in the server's velocity", ge=0, lt=1)
    ] = 0.9

    name: ClassVar[str] = "fedavgm"
    title: ClassVar[str] = "FedAvgM"

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"lr": few_lrs(setting, (0.01, 0.03, 0.1)), "server_momentum": (0.7, 0.9)}

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.clone(), "v": torch.zeros_like(x)}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        v = self.server_momentum * server["v"] + sums.mean("update")
        return {"xbar": run.constraint.project(server["xbar"] + v), "v": v}
