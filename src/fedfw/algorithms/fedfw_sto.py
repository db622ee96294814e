"""FedFW-sto: FedFW from minibatch gradients, averaged over the rounds so that their noise dies out.

    d_i <- (1 - rho_t) d_i + rho_t w_i grad f_i(x_i; minibatch)        (first d_i: first gradient)
    g_i = d_i + lam_t (x_i - xbar)

and FedFW's step. Its own schedule has rho_t = 4 / (t+7)^(2/3). With full batches and rho = 1 it is
FedFW.

Reference: Dadras, Banerjee, Prakhya and Yurtsever, "Federated Frank-Wolfe Algorithm" (2024).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from fedfw.algorithms.averaging import Averaging
from fedfw.algorithms.penalised import PenalisedFW
from fedfw.algorithms.penalty import GRID, choose_penalty
from fedfw.algorithms.rules import StepRule
from fedfw.algorithms.setting import Setting
from fedfw.algorithms.step_sizes import stochastic_steps


@dataclass(frozen=True, kw_only=True)
class FedFWSto(PenalisedFW):
    """FedFW-sto: FedFW from minibatch gradients, which are averaged over the rounds so that their
    noise dies out.

    It has no momentum of its own: its schedule says how much a fresh gradient counts. Give
    ``batch_size`` to the run.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    penalty : float or str
        lam_0; see `fedfw.algorithms.penalty`.
    schedule : str, Schedule, callable or None
        Step sizes and averaging weights; see `fedfw.schedules`.

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
    default_batch_size: ClassVar[int | None] = 64

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"penalty": GRID}

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        lam_0 = choose_penalty(self.penalty, setting, averages=True)
        return replace(self, penalty=lam_0), stochastic_steps(self.schedule, setting, lam_0)

    @property
    def averaging(self) -> Averaging:
        return Averaging(None)
