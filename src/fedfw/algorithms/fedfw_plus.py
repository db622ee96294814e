"""FedFW+: FedFW with a dual vector y_i on each client, which learns what keeps the clients apart.

    y_i <- y_i + lam_0 (x_i - xbar)                                           (once a round)
    g_i = w_i grad f_i(x_i) + lam_t (x_i - xbar) + y_i - ybar,    ybar = mean of all y_j

and FedFW's step. ybar is zero while all clients are present. With absentees only participants
update y_i, the sum drifts, and without ybar the limit is wrong: then ybar goes down. Both ends
use xbar as it was delivered, so that ybar is the mean of the y_i whatever the wire rounds.

Reference: Dadras, Banerjee, Prakhya and Yurtsever, "Federated Frank-Wolfe Algorithm" (2024).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import Client, Message, Present, Run, State
from fedfw.algorithms.fedfw import FedFW
from fedfw.algorithms.rules import Rates
from fedfw.linalg.pull import pulled


@dataclass(frozen=True, kw_only=True)
class FedFWPlus(FedFW):
    """FedFW+: FedFW whose clients also learn a dual vector, so that a small penalty is enough to
    make them agree.

    It sends what FedFW sends: one atom a client and round. With absentees one more vector goes
    down.

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
    >>> run = fedfw.simulate(
    ...     problem, fedfw.FedFWPlus(fedfw.Box(-1.0, 1.0), penalty=1.0), rounds=300
    ... )
    >>> round(float(run.x), 2)
    1.0
    """

    name: ClassVar[str] = "fedfw+"
    title: ClassVar[str] = "FedFW+"
    coordinatewise: ClassVar[bool] = True
    downloads: ClassVar[tuple[str, ...]] = ("ybar",)
    means: ClassVar[Mapping[str, str]] = {"xbar": "x", "ybar": "y"}

    def init_client(self, run: Run, x: Tensor) -> Client:
        shared, private = super().init_client(run, x)
        return Client(shared | {"y": torch.zeros_like(shared["x"])}, private)

    def init_server(self, run: Run, x: Tensor) -> State:
        server = super().init_server(run, x)
        return server | {"ybar": torch.zeros_like(server["xbar"])}

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        """Update and send the mean multiplier, ybar <- ybar + (lam / n) sum over the participants
        of (x_i - xbar).

        With all clients present this sum is zero, and a multiplier of zero is not sent.
        """
        ybar = server["ybar"]
        if present.complete and not bool(ybar.any()):
            return server, {}
        sum_of_differences = present.shared("x") - present.count * xbar
        ybar = ybar + (float(self.penalty) / run.n) * sum_of_differences
        return server | {"ybar": ybar}, {"ybar": ybar}

    def receive(self, run: Run, shared: State, msg: Message) -> State:
        return shared | {"y": pulled(shared["y"], shared["x"], msg.xbar, float(self.penalty))}

    def direction(self, d: Tensor, shared: State, msg: Message, rates: Rates) -> Tensor:
        """Return d + lam (x - xbar) + y - ybar."""
        g = super().direction(d, shared, msg, rates)
        g += shared["y"]  # in place: it is a new tensor, and large
        if "ybar" in msg.vectors:
            g -= msg.vectors["ybar"]
        return g
