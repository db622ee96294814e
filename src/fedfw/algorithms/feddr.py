"""FedDR: Douglas-Rachford splitting with an inexact proximal step on each client. The paper's
baseline.

    y_i <- y_i + alpha (xbar - x_i)
    x_i ~ prox of eta h_i at y_i:   K gradient steps on h_i(x) + ||x - y_i||^2 / (2 eta), from the x_i of before
    xhat_i = 2 x_i - y_i
    xtilde = mean of all xhat_i, the absent ones' last included;   xbar = P(xtilde)

Clients send the change of xhat_i. The projected point goes to the clients and never into xtilde. At
a fixed point x_i = xbar = x* and y_i = x* + eta grad h_i(x*), so xtilde = x* - eta grad F(x*) and
x* = P(xtilde): a minimiser.

Reference: Tran-Dinh, Pham, Phan and Nguyen, "FedDR: randomized Douglas-Rachford splitting
algorithms for nonconvex federated composite optimization" (2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from fedfw.algorithms.contract import (
    Contract,
    Gradient,
    Lmo,
    Message,
    Payload,
    Plan,
    Reveals,
    Setting,
    State,
    Up,
)
from fedfw.algorithms.projected import SplittingAlgorithm, descend, vital
from fedfw.options import option


@dataclass(frozen=True)
class FedDR(SplittingAlgorithm):
    """FedDR: Douglas-Rachford splitting with an inexact proximal step on each client; the paper's
    baseline.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the local gradient steps; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.
    eta : float
        Parameter of the proximal step.
    alpha : float
        Relaxation, above 0 and below 2.

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
    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        remembers=vital("x", "y", "xhat"),
        reveals=Reveals.MODELS,
        shares="how every client's reflected point 2 x_i - y_i changes in each round",
    )
    tuned_step: ClassVar[float] = 0.8

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"lr": cls.steps(setting, (0.5, 1, 2)), "eta": (3.0, 10.0), "alpha": (1.0, 1.9)}

    def start_clients(self, x: Tensor) -> State:
        return {"x": x, "y": x.clone(), "xhat": x.clone()}

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        y = state["y"] + self.alpha * (message.xbar - state["x"])
        x = descend(plan, message.t, gradient, state["x"], y, 1 / self.eta)
        xhat = 2 * x - y
        return {"x": x, "y": y, "xhat": xhat}, {"vector": xhat - state["xhat"]}
