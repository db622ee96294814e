"""FedFW: Frank-Wolfe on every client, held together by a penalty.

Each client i keeps its own x_i, which the server never overwrites. In round t, with xbar the mean
of all x_i,

    g_i = w_i grad f_i(x_i) + lam_t (x_i - xbar)
    s_i = argmin over s in D of <g_i, s>                 (the oracle; one atom, all that is sent)
    x_i <- (1 - eta_t) x_i + eta_t s_i
    xbar <- xbar + (eta_t / n) sum over the present of (s_i - x_i)

Reference: Dadras, Banerjee, Prakhya and Yurtsever, "Federated Frank-Wolfe Algorithm" (2024).
Momentum, which is not in the paper, replaces w_i grad f_i(x_i) by d_i <- beta d_i + (1 - beta) w_i
grad f_i(x_i).

FedFW-sto: FedFW from minibatch gradients, averaged over the rounds so that their noise dies out.

    d_i <- (1 - rho_t) d_i + rho_t w_i grad f_i(x_i; minibatch)          (a client's first d_i is its first gradient)
    g_i = d_i + lam_t (x_i - xbar)

and FedFW's step. Its own schedule has rho_t = 4 / (t+7)^(2/3). With full batches and rho = 1 it is
FedFW.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedfw.algorithms.contract import Message, Plan, Rates, Setting, State
from fedfw.algorithms.oracle_steps import OracleAlgorithm
from fedfw.algorithms.scheduled import Momentum, running_average
from fedfw.linalg.pull import pulled
from fedfw.schedules import Schedule, nonconvex, stochastic


@dataclass(frozen=True)
class FedFW(Momentum, OracleAlgorithm):
    """Federated Frank-Wolfe: each client takes Frank-Wolfe steps on its own loss, held to the
    others by a penalty.

    Clients send one atom a round and nothing else. The loss at the mean model falls like 1 /
    sqrt(t) on convex problems. FedFW+ (`FedFWPlus`) is the better default on smooth sets.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    penalty : float or str
        lam_0; see `OracleAlgorithm`.
    schedule : str, Schedule, callable or None
        Step sizes; see `Scheduled`.
    momentum : float or "auto"
        Weight of past gradients; see `Momentum`.

    Examples
    --------
    Two clients with the losses (x - 3)^2 and (x + 1)^2 on [-1, 1]; the best common point is 1.

    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.FedFW(fedfw.Box(-1.0, 1.0), penalty=0.3), rounds=300)
    >>> round(float(run.x), 1)
    0.7
    """

    name: ClassVar[str] = "fedfw"
    title: ClassVar[str] = "FedFW"
    paces: ClassVar[bool] = True
    coordinatewise: ClassVar[bool] = True

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        penalties = ("auto:0.1", "auto:1", "auto:10") if setting.network else ("auto:0.1", "auto:1")
        return {"penalty": penalties, "momentum": (0.0, 0.9), "schedule": cls.step_grid(setting)}

    def direction(
        self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates
    ) -> tuple[State, Tensor]:
        if self.beta:
            state, a = running_average(state, a, 1 - self.beta)
        return state, pulled(a, state["x"], message.xbar, rates.lam)


@dataclass(frozen=True)
class FedFWSto(OracleAlgorithm):
    """FedFW-sto: FedFW from minibatch gradients, which are averaged over the rounds so that their
    noise dies out.

    It has no momentum of its own: its schedule says how much a fresh gradient counts. Give
    ``batch_size`` to the run.

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
        if (
            self.schedule is None and setting.network
        ):  # steps that keep a network's start, the same averaging
            return replace(
                nonconvex(setting.p, setting.rounds * setting.local_steps), rho=stochastic().rho
            )
        return super().make_schedule(setting)

    def default_schedule(self, setting: Setting) -> str:
        return "stochastic"

    @property
    def exact(self) -> bool:
        return False

    def direction(
        self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates
    ) -> tuple[State, Tensor]:
        state, d = running_average(state, a, rates.rho)
        return state, pulled(d, state["x"], message.xbar, rates.lam)
