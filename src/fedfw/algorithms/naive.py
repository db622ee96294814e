"""The scheme that fails: clients take Frank-Wolfe steps from xbar, and the server averages.

    x_i <- xbar;   K times:  x_i <- (1 - eta) x_i + eta argmin over s in D of <grad f_i(x_i), s>
    xbar <- mean over those present of the x_i, with the weights w_i

Its fixed points are not minimisers of F when clients differ: for f_1 = (x-3)^2, f_2 = (x+1)^2 on
[-1, 1] it stays at 0, while F is least at 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Affine,
    Algorithm,
    Client,
    Kind,
    Message,
    Oracles,
    Payload,
    Run,
    State,
    Sums,
)
from fedfw.algorithms.local_steps import LocalSteps, mean_of_ends
from fedfw.algorithms.optin import Certifies, Tunable
from fedfw.algorithms.rules import FrankWolfeSteps, StepRule
from fedfw.algorithms.setting import Setting
from fedfw.algorithms.step_sizes import ScheduleOption, theory_schedule, validate_schedule


@dataclass(frozen=True, kw_only=True)
class NaiveFW(Algorithm, Certifies, Tunable):
    """Local Frank-Wolfe steps from the server's model, then averaging: the scheme that fails when
    clients differ.

    It is here for teaching. It has neither a penalty nor momentum, and its clients remember
    nothing.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    schedule : str, Schedule, callable or None
        Step sizes; see `fedfw.schedules`.

    Examples
    --------
    Two clients with the losses (x - 3)^2 and (x + 1)^2 on [-1, 1] pull the model to both ends, and
    it stays at 0.

    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.NaiveFW(fedfw.Box(-1.0, 1.0)), rounds=300)
    >>> abs(round(float(run.x), 2))
    0.0
    """

    schedule: ScheduleOption = None

    name: ClassVar[str] = "naive"
    title: ClassVar[str] = "local steps, averaged"
    revision: ClassVar[int] = 2
    weighted: ClassVar[bool] = True
    uploads: ClassVar[Mapping[str, Kind]] = {"atom": Kind.ATOM}
    proves_bounds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_schedule(self.name, self.schedule, curvature=False)

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"schedule": ("convex", "constant:0.01", "constant:0.1")}

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        return self, FrankWolfeSteps(theory_schedule(self.schedule, setting), setting.local_steps)

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local steps to the oracle's answers at the gradients, and send their net atom."""
        steps = LocalSteps(run, msg, oracles)
        for x in steps.points():
            steps.step_along(oracles.gradient(x))
        return client.private, {"atom": steps.net_atom()}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        return {"xbar": mean_of_ends(sums, msg)}

    def public_direction(self, run: Run, shared: State, msg: Message) -> Tensor:
        return torch.zeros_like(msg.xbar)[None]
