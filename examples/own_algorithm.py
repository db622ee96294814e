"""Your own algorithm in one class: FedFW whose penalty pulls towards a slowly moving average of xbar.

    python examples/own_algorithm.py

An algorithm says what a client remembers and which direction it gives to the oracle. The simulator, the byte ledger,
checkpoints and partial participation then work as for the others.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import fedfw
from fedfw.algorithms.base import Message, Plan, Rates, State


@dataclass(frozen=True)
class SlowFW(fedfw.OracleAlgorithm):
    """g_i = w_i grad f_i(x_i) + lam_t (x_i - z_i),  z_i <- z_i / 2 + xbar / 2 once a round."""

    name: ClassVar[str] = "slow"
    has_certificate: ClassVar[bool] = False  # the penalties do not add up to zero

    def start_clients(self, x: Tensor) -> State:
        return super().start_clients(x) | {"z": x.clone()}

    def begin_round(self, plan: Plan, state: State, message: Message) -> State:
        return state | {"z": (state["z"] + message.xbar) / 2}

    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        return state, a + rates.lam * (state["x"] - state["z"])


# Two clients that disagree: f_1 = (x-3)^2, f_2 = (x+1)^2 on [-1, 1]; the sum is least at 1.
problem = fedfw.Problem.from_losses(
    [lambda x: (x - 3).square().sum(), lambda x: (x + 1).square().sum()], torch.zeros(1), convex=True
)
box = fedfw.Box(-1.0, 1.0)
for algorithm in (
    fedfw.NaiveFW(box),
    fedfw.FedFW(box, penalty=1.0),
    SlowFW(box, penalty=1.0),
    fedfw.FedFWPlus(box, penalty=1.0),
):
    run = fedfw.simulate(problem, algorithm, rounds=1000, eval_every=1000)
    print(f"{algorithm.name:10s} ends at {float(run.x):6.3f}, proven within {run.history[-1].gap:.3f} of the optimum")
