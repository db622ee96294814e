"""FedADMM: the alternating direction method of multipliers with an inexact local step.

    x_i ~ argmin of h_i(x) + <z_i, x - xbar> + ||x - xbar||^2 / (2 eta):   K gradient steps, from the x_i of before
    z_i <- z_i + (x_i - xbar) / eta
    xtilde = mean of all (x_i + eta z_i), the absent ones' last included;   xbar = P(xtilde)

Clients send the change of x_i + eta z_i. At a fixed point x_i = xbar = x* and z_i = -grad h_i(x*), so
xtilde = x* - eta grad F(x*) and x* = P(xtilde): a minimiser.

Reference: Wang, Marella and Anderson, "FedADMM: a federated primal-dual algorithm allowing partial participation"
(2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import Contract, Evidence, Gradient, Lmo, Message, Plan, Reveals, Setting, State, Up
from fedfw.algorithms.projected import SplittingAlgorithm, dense, descend, vital
from fedfw.atoms import Atom


@dataclass(frozen=True)
class FedADMM(SplittingAlgorithm):
    """FedADMM: the alternating direction method of multipliers with an inexact local step.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the local gradient steps; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.
    eta : float
        One over the penalty of the augmented Lagrangian.

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
    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        remembers=vital("x", "z"),
        reveals=Reveals.MODELS,
        shares="how every client's x_i + eta z_i changes in each round",
    )
    tuned_step: ClassVar[float] = 0.8

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"lr": cls.steps(setting, (0.25, 0.5, 1, 2)), "eta": (1.0, 3.0, 10.0)}

    def start_clients(self, x: Tensor) -> State:
        return {"x": x, "z": torch.zeros_like(x)}

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        centre = message.xbar - self.eta * state["z"]
        x = descend(plan, message.t, gradient, state["x"], centre, 1 / self.eta)
        z = state["z"] + (x - message.xbar) / self.eta
        change = (x - state["x"]) + self.eta * (z - state["z"])
        return {"x": x, "z": z}, dense(change), None
