"""SCAFFOLD with a projection: gradient steps that control variates correct, so that local steps do
not drift.

    client i:  y <- xbar;   K times:  y <- y - lr_t (grad f_i(P(y)) - c_i + c)
               c_i <- c_i - c + (xbar - y) / (K lr_t), the mean of its K gradients;
               it sends how c_i changes
    server:    xbar <- P(mean of the y over those present),   c <- mean of all c_i

This is the paper's option II. Its clients also send y - xbar, which is -K lr_t (change of c_i + c)
and can therefore be left out: it is one vector up instead of two. Means have the weights w_i. The
step of the server is 1.

The paper has no constraint. Here gradients are taken at the projected point and steps at the other
one, as in dual averaging. A minimiser x* is then a fixed point with any number of local steps, also
at the border of D: with c_i = grad f_i(x*) and c = grad F(x*) a client's y is x* - k lr_t c, whose
projection is x*, so it sees grad f_i(x*) in every step. Gradients at y itself would be gradients
outside of D, and their mean another one.

Reference: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic controlled
averaging for federated learning" (2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Affine,
    Client,
    Kind,
    Message,
    Oracles,
    Payload,
    Run,
    State,
    Sums,
    Weight,
)
from fedfw.algorithms.control_variates import KeepsControls
from fedfw.algorithms.learning_rate import GradientMethod


@dataclass(frozen=True, kw_only=True)
class Scaffold(KeepsControls, GradientMethod):
    """SCAFFOLD with a projection: gradient steps that control variates correct.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr, decay, compress, compress_down
        See `GradientMethod`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> algorithm = fedfw.Scaffold(fedfw.Box(-1.0, 1.0), lr=0.1)
    >>> run = fedfw.simulate(problem, algorithm, rounds=20, local_steps=5)
    >>> round(float(run.x), 2)
    1.0
    """

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD"
    shares: ClassVar[str] = (
        "how the mean of every client's local gradients changes from one of its rounds to the next"
    )
    weighted: ClassVar[bool] = True
    uploads: ClassVar[Mapping[str, Kind]] = {"change": Kind.CHANGE}

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local steps corrected by c - c_i, and send how c_i changes."""
        c_i = client.shared["c"]
        correction = (msg.vectors["c"] - c_i).to(run.dtype)
        y = msg.xbar.expand_as(c_i)
        total = torch.zeros_like(y)
        for k, rates in enumerate(msg.rates):
            point = run.constraint.project(y, batch=True) if k else y  # xbar lies in the set
            g = oracles.gradient(point, times=Weight.ONE)
            total = total + g
            y = y - rates.eta * (g + correction)
        change = total / len(msg.rates) - c_i
        return client.private, {"change": change.to(run.dtype)}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Repeat the participants' mean way, whose slope is their mean change of c_i plus c, and
        update c.
        """
        slope = sums.mean("change") + msg.vectors["c"].to(run.dtype)
        way = len(msg.rates) * msg.rates[0].eta * slope
        c = server["c"] + sums.total("change").double() / run.n
        return {"xbar": run.constraint.project(server["xbar"] - way), "c": c}
