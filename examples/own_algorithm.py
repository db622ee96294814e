"""
An algorithm of your own in one class
=====================================

An algorithm says what a client keeps, what it does with messages and gradients, and what the server
does with the answers. The simulator, the count of bytes, compression, checkpoints, absent clients
and deployments then work as for the others.
Its options are declared where they stand. A package that names the class as an entry point of the
group ``fedfw.algorithms`` puts both on the command line and into configuration files; the folder
``examples/package`` of the repository is one.

This one is FedFW whose penalty pulls towards a slowly moving average of xbar, the mean of the
clients' points.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

import fedfw
from fedfw.algorithms import Client, Message, Rates, Run, State
from fedfw.options import option


@dataclass(frozen=True, kw_only=True)
class SlowFW(fedfw.FedFW):
    """g_i = w_i grad f_i(x_i) + lam_t (x_i - z_i),  z_i <- slowness z_i + (1 - slowness) xbar once a round."""

    slowness: Annotated[float, option("how much of its old centre a client keeps", ge=0, lt=1)] = (
        0.5
    )

    name: ClassVar[str] = "slow"
    title: ClassVar[str] = "SlowFW"
    proves_bounds: ClassVar[bool] = False  # the penalties do not add up to zero

    def init_client(self, run: Run, x: Tensor) -> Client:
        shared, private = super().init_client(run, x)
        return Client(shared | {"z": shared["x"].clone()}, private)

    def receive(self, run: Run, shared: State, msg: Message) -> State:
        return shared | {"z": torch.lerp(msg.xbar.double(), shared["z"], self.slowness)}

    def direction(self, d: Tensor, shared: State, msg: Message, rates: Rates) -> Tensor:
        return d + rates.lam * (shared["x"] - shared["z"])


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
