"""The scheme that fails, for teaching: local Frank-Wolfe steps from xbar, then averaging.

    x_i <- xbar;  K times:  x_i <- (1 - eta_t) x_i + eta_t argmin over s in D of <grad f_i(x_i), s>;  xbar <- mean x_i

The mean is over those present, with the weights w_i. Its fixed points are not minimisers of F when
clients differ: for f_1 = (x-3)^2, f_2 = (x+1)^2 on [-1, 1] it stays at 0, while F is least at 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedfw.algorithms.contract import (
    Aggregate,
    Contract,
    Kept,
    Message,
    Plan,
    Rates,
    Setting,
    State,
)
from fedfw.algorithms.oracle_steps import OracleSteps


@dataclass(frozen=True)
class NaiveFW(OracleSteps):
    """Local Frank-Wolfe steps from the server's model, then averaging: the scheme that fails when
    clients differ.

    It is here for teaching. It has neither a penalty nor momentum, and its clients remember
    nothing.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    schedule : str, Schedule, callable or None
        Step sizes; see `Scheduled`.

    Examples
    --------
    Two clients with the losses (x - 3)^2 and (x + 1)^2 on [-1, 1] pull the model to both ends, and
    it stays at 0.

    >>> import fedfw
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.NaiveFW(fedfw.Box(-1.0, 1.0)), rounds=300)
    >>> abs(round(float(run.x), 2))
    0.0
    """

    name: ClassVar[str] = "naive"
    title: ClassVar[str] = "local steps, averaged"
    revision: ClassVar[int] = 2
    contract: ClassVar[Contract] = Contract(remembers={"x": Kept.REBUILT}, weighted=True)

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"schedule": ("convex", "constant:0.01", "constant:0.1")}

    def receive(self, plan: Plan, shared: State, message: Message) -> State:
        return shared | {"x": message.xbar.expand_as(shared["x"])}

    def direction(
        self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates
    ) -> tuple[State, Tensor]:
        return state, a

    def repeatable(self, plan: Plan, aggregate: Aggregate, t: int) -> tuple[float, float]:
        eta, _ = plan.mixing(t)
        return 1 - eta, eta / aggregate.weight
