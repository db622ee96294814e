"""FedDR: Douglas-Rachford splitting with an inexact proximal step on each client. The paper's
baseline.

    y_i <- y_i + alpha (xbar - x_i)
    x_i ~ prox of eta h_i at y_i:   K gradient steps on h_i(x) + ||x - y_i||^2 / (2 eta),
                                    from the x_i of before
    xhat_i = 2 x_i - y_i
    xtilde = mean of all xhat_i, the absent ones' last included;   xbar = P(xtilde)

Clients send the change of xhat_i. The projected point goes to the clients and never into xtilde. At
a fixed point x_i = xbar = x* and y_i = x* + eta grad h_i(x*), so xtilde = x* - eta grad F(x*) and
x* = P(xtilde): a minimiser.

Reference: Tran-Dinh, Pham, Phan and Nguyen, "FedDR: randomized Douglas-Rachford splitting
algorithms for nonconvex federated composite optimization" (2021).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
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
from fedfw.algorithms.learning_rate import GradientMethod, descend, lr_grid
from fedfw.algorithms.setting import Setting
from fedfw.options import option

EtaOption = Annotated[float, option("parameter of the proximal step", gt=0)]


@dataclass(frozen=True, kw_only=True)
class ProximalMethod(GradientMethod):
    """A method whose clients take an inexact proximal step, and send how a vector xhat_i changes,
    of which the server projects the mean.

    Parameters
    ----------
    constraint, lr, decay, compress, compress_down
        See `GradientMethod`.
    eta : float
        Parameter of the proximal step.
    """

    eta: EtaOption = 3.0

    reveals: ClassVar[Reveals] = Reveals.MODELS
    uploads: ClassVar[Mapping[str, Kind]] = {"change": Kind.CHANGE}
    means: ClassVar[Mapping[str, str]] = {"xtilde": "xhat"}
    tuned: ClassVar[float] = 0.8

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.clone(), "xtilde": x.to(torch.float64, copy=True)}

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        return {"xhat": shared["xhat"] + payload["change"]}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        xtilde = server["xtilde"] + sums.total("change").double() / run.n
        return {"xbar": run.constraint.project(xtilde.to(run.dtype)), "xtilde": xtilde}


@dataclass(frozen=True, kw_only=True)
class FedDR(ProximalMethod):
    """FedDR: Douglas-Rachford splitting with an inexact proximal step on each client; the paper's
    baseline.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    eta : float
        Parameter of the proximal step.
    alpha : float
        Relaxation, above 0 and below 2.
    lr, decay, compress, compress_down
        See `GradientMethod`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.FedDR(fedfw.Box(-1.0, 1.0)), rounds=300)
    >>> round(float(run.x), 2)
    1.0
    """

    alpha: Annotated[float, option("relaxation", gt=0, lt=2)] = 1.9

    name: ClassVar[str] = "feddr"
    title: ClassVar[str] = "FedDR"
    shares: ClassVar[str] = "how every client's reflected point 2 x_i - y_i changes in each round"

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"lr": lr_grid(setting, (0.5, 1, 2)), "eta": (3.0, 10.0), "alpha": (1.0, 1.9)}

    def init_client(self, run: Run, x: Tensor) -> Client:
        return Client(shared={"xhat": x.double()}, private={"x": x, "y": x.clone()})

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take a Douglas-Rachford step: relax y, and descend on f_i near it."""
        x = client.private["x"]
        y = client.private["y"] + self.alpha * (msg.xbar - x)
        x = descend(x, msg, oracles, y, 1 / self.eta, times=Weight.N_W_I)
        change = 2 * x - y - client.shared["xhat"]
        return {"x": x, "y": y}, {"change": change.to(run.dtype)}
