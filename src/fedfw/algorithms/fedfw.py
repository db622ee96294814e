"""FedFW: Frank-Wolfe on every client, held together by a penalty.

Each client i keeps its own x_i, which the server never overwrites. In round t, with xbar the mean
of all x_i,

    g_i = w_i grad f_i(x_i) + lam_t (x_i - xbar)
    s_i = argmin over s in D of <g_i, s>                 (the oracle; one atom, all that is sent)
    x_i <- (1 - eta_t) x_i + eta_t s_i
    xbar <- mean of all x_i, present or not

`PenalisedFW` has the step. Momentum, which is not in the paper and is 0.9 by default, averages
w_i grad f_i(x_i) over the rounds (`fedfw.algorithms.averaging`); 0 is the paper's method.

Reference: Dadras, Banerjee, Prakhya and Yurtsever, "Federated Frank-Wolfe Algorithm" (2024).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from fedfw.algorithms.averaging import Averaging, MomentumOption, choose_momentum, momentum_average
from fedfw.algorithms.penalised import PenalisedFW
from fedfw.algorithms.penalty import choose_penalty
from fedfw.algorithms.rules import StepRule
from fedfw.algorithms.setting import Setting
from fedfw.algorithms.step_sizes import frank_wolfe_steps, step_grid


@dataclass(frozen=True, kw_only=True)
class FedFW(PenalisedFW):
    """Federated Frank-Wolfe: each client takes Frank-Wolfe steps on its own loss, held to the
    others by a penalty.

    Clients send one atom a round and nothing else. The loss at the mean model falls like 1 /
    sqrt(t) on convex problems. FedFW+ (`FedFWPlus`) is the better default on smooth sets.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    penalty : float or str
        lam_0; see `fedfw.algorithms.penalty`.
    schedule : str, Schedule, callable or None
        Step sizes; see `fedfw.schedules`.
    momentum : float or "auto"
        Weight of past gradients; "auto" is 0.9, and 0 is the paper's method.

    Examples
    --------
    Two clients with the losses (x - 3)^2 and (x + 1)^2 on [-1, 1]; the best common point is 1.

    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.FedFW(fedfw.Box(-1.0, 1.0), penalty=0.3), rounds=300)
    >>> round(float(run.x), 1)
    0.7
    """

    momentum: MomentumOption = "auto"

    name: ClassVar[str] = "fedfw"
    title: ClassVar[str] = "FedFW"
    has_curvature_steps: ClassVar[bool] = True
    coordinatewise: ClassVar[bool] = True

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        penalties = ("auto:0.1", "auto:1", "auto:10") if setting.network else ("auto:0.1", "auto:1")
        return {"penalty": penalties, "momentum": (0.0, 0.9), "schedule": step_grid(setting)}

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        beta = choose_momentum(self.momentum, setting)
        lam_0 = choose_penalty(self.penalty, setting, averages=beta > 0)
        schedule, rule = frank_wolfe_steps(self.schedule, setting, lam_0, beta)
        return replace(self, momentum=beta, penalty=lam_0, schedule=schedule), rule

    @property
    def averaging(self) -> Averaging:
        return momentum_average(self.momentum)
