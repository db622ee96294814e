"""FedADMM: the alternating direction method of multipliers with an inexact local step.

    x_i ~ argmin of h_i(x) + <z_i, x - xbar> + ||x - xbar||^2 / (2 eta):
          K gradient steps, from the x_i of before
    z_i <- z_i + (x_i - xbar) / eta
    xtilde = mean of all (x_i + eta z_i), the absent ones' last included;   xbar = P(xtilde)

Clients send the change of x_i + eta z_i. At a fixed point x_i = xbar = x* and z_i = -grad h_i(x*),
so xtilde = x* - eta grad F(x*) and x* = P(xtilde): a minimiser.

Reference: Wang, Marella and Anderson, "FedADMM: a federated primal-dual algorithm allowing partial
participation" (2022).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import Client, Message, Oracles, Payload, Run, State, Weight
from fedfw.algorithms.feddr import ProximalMethod
from fedfw.algorithms.learning_rate import descend, lr_grid
from fedfw.algorithms.setting import Setting


@dataclass(frozen=True, kw_only=True)
class FedADMM(ProximalMethod):
    """FedADMM: the alternating direction method of multipliers with an inexact local step.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    eta : float
        One over the penalty of the augmented Lagrangian.
    lr, decay, compress, compress_down
        See `GradientMethod`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.contrib.FedADMM(fedfw.Box(-1.0, 1.0)), rounds=300)
    >>> round(float(run.x), 2)
    1.0
    """

    name: ClassVar[str] = "fedadmm"
    title: ClassVar[str] = "FedADMM"
    shares: ClassVar[str] = "how every client's x_i + eta z_i changes in each round"

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"lr": lr_grid(setting, (0.25, 0.5, 1, 2)), "eta": (1.0, 3.0, 10.0)}

    def init_client(self, run: Run, x: Tensor) -> Client:
        # xhat_i = x_i + eta z_i, as the server holds it.
        return Client(shared={"xhat": x.double()}, private={"x": x, "z": torch.zeros_like(x)})

    def pull(self, run: Run, z: Tensor, msg: Message) -> tuple[Tensor, float]:
        """Return where local steps are pulled to, (m, p), and the weight of the pull."""
        return msg.xbar - self.eta * z, 1 / self.eta

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Descend on f_i with the penalty and the multiplier z, and update z."""
        centre, weight = self.pull(run, client.private["z"], msg)
        x = descend(client.private["x"], msg, oracles, centre, weight, times=Weight.N_W_I)
        z = client.private["z"] + (x - msg.xbar) / self.eta
        change = x + self.eta * z - client.shared["xhat"]
        return {"x": x, "z": z}, {"change": change.to(run.dtype)}
