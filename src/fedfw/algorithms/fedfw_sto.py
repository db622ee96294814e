"""FedFW-sto: FedFW from minibatch gradients, averaged over the rounds so that their noise dies out.

    d_i <- (1 - rho_t) d_i + rho_t w_i grad f_i(x_i; minibatch)          (a client's first d_i is its first gradient)
    g_i = d_i + lam_t (x_i - xbar)

and FedFW's step. Its own schedule has rho_t = 4 / (t+7)^(2/3). With full batches and rho = 1 it is FedFW.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedfw.algorithms.base import Message, Plan, Rates, Setting, State
from fedfw.algorithms.oracle_steps import OracleAlgorithm
from fedfw.algorithms.scheduled import running_average
from fedfw.linalg.pull import pulled
from fedfw.schedules import Schedule, nonconvex, stochastic


@dataclass(frozen=True)
class FedFWSto(OracleAlgorithm):
    """FedFW-sto: FedFW from minibatch gradients, which are averaged over the rounds so that their noise dies out.

    It has no momentum of its own: its schedule says how much a fresh gradient counts. Give ``batch_size`` to the run.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    penalty : float or str
        lam_0; see `OracleAlgorithm`.
    schedule : str, Schedule, callable or None
        Step sizes and averaging weights; see `Scheduled`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.load_problem("digits", clients=5, partition="iid")
    >>> run = fedfw.simulate(problem, fedfw.FedFWSto(fedfw.L2Ball(10.0)), rounds=50, batch_size=64)
    >>> run.history[-1].accuracy > 0.85
    True
    """

    name: ClassVar[str] = "fedfw-sto"
    title: ClassVar[str] = "FedFW-sto"
    coordinatewise: ClassVar[bool] = True
    usual_batch: ClassVar[int | None] = 64

    def make_schedule(self, setting: Setting) -> Schedule:
        if self.schedule is None and setting.network:  # steps that keep a network's start, the same averaging
            return replace(nonconvex(setting.p, setting.rounds * setting.local_steps), rho=stochastic().rho)
        return super().make_schedule(setting)

    def default_schedule(self, setting: Setting) -> str:
        return "stochastic"

    @property
    def exact(self) -> bool:
        return False

    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        state, d = running_average(state, a, rates.rho)
        return state, pulled(d, state["x"], message.xbar, rates.lam)
