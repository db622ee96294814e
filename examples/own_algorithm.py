"""
An algorithm of your own in one class
=====================================

An algorithm says what a client remembers and which direction it gives to the oracle. The simulator,
the count of bytes, checkpoints, partial participation and deployments then work as for the others.
Its options are declared where they stand. A package that names the class as an entry point of the
group ``fedfw.algorithms`` puts both on the command line and into configuration files; the folder
``examples/package`` of the repository is one.

This one is FedFW whose penalty pulls towards a slowly moving average of xbar, the mean of the
clients' points.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor

import fedfw
from fedfw.algorithms import Contract, Kept, Message, Plan, Rates, State
from fedfw.options import option


@dataclass(frozen=True)
class SlowFW(fedfw.OracleAlgorithm):
    """g_i = w_i grad f_i(x_i) + lam_t (x_i - z_i),  z_i <- slowness z_i + (1 - slowness) xbar once a round."""

    slowness: Annotated[float, option("how much of its old centre a client keeps", ge=0, lt=1)] = (
        0.5
    )

    name: ClassVar[str] = "slow"
    title: ClassVar[str] = "SlowFW"
    contract: ClassVar[Contract] = replace(
        fedfw.OracleAlgorithm.contract,
        remembers={
            "x": Kept.REBUILT,
            "z": Kept.REBUILT,
        },  # z_i comes from messages: the server knows it, too
        proves=False,  # the penalties do not add up to zero
    )

    def start_clients(self, x: Tensor) -> State:
        return super().start_clients(x) | {"z": x.clone()}

    def receive(self, plan: Plan, shared: State, message: Message) -> State:
        return shared | {"z": self.slowness * shared["z"] + (1 - self.slowness) * message.xbar}

    def direction(
        self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates
    ) -> tuple[State, Tensor]:
        return state, a + rates.lam * (state["x"] - state["z"])


# Two clients that disagree: f_1 = (x-3)^2, f_2 = (x+1)^2 on [-1, 1]; the sum is least at 1.
problem = fedfw.testing.two_quadratics()
box = fedfw.Box(-1.0, 1.0)
for algorithm in (
    fedfw.NaiveFW(box),
    fedfw.FedFW(box, penalty=1.0),
    SlowFW(box, penalty=1.0, slowness=0.8),
    fedfw.FedFWPlus(box, penalty=1.0),
):
    run = fedfw.simulate(problem, algorithm, rounds=500, eval_every=500)
    print(
        f"{algorithm.name:10s} ends at {float(run.x):6.3f}, proven within {run.history[-1].gap:.3f} of the optimum"
    )
