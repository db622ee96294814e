"""FedPGD: projected gradient descent at the server, on gradients that clients send; also with
Nesterov's extrapolation.

    client i:  sends grad f_i(z)
    server:    x <- P(z - lr_t grad F(z)),
               grad F(z) = the mean of what clients sent, with the weights w_i
               z <- x, or with extrapolation  z <- x + beta (x - the last x),
               beta = (theta - 1) / theta',
               theta' = (1 + sqrt(1 + 4 theta^2)) / 2,   theta <- theta'

theta begins at 1, and does so again after a step that turns against the direction, <z - x, x - the
last x> > 0. The model is x, which lies in D; z may lie outside. Its only fixed points are the
minimisers. With `compress` it is EF21 with a projection, and with
both its accelerated form, for which nothing is proven.

References: Nesterov, "A method for solving a convex programming problem with rate of convergence
O(1/k^2)" (1983); Beck and Teboulle, "A fast iterative shrinkage-thresholding algorithm" (2009);
O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes" (2015).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Affine,
    Client,
    Kind,
    Message,
    Oracles,
    Payload,
    Reveals,
    Run,
    State,
    Sums,
    Weight,
)
from fedfw.algorithms.learning_rate import GradientMethod, lr_grid
from fedfw.algorithms.rules import StepRule
from fedfw.algorithms.setting import Setting, validate_one_step
from fedfw.options import option


@dataclass(frozen=True, kw_only=True)
class FedPGD(GradientMethod):
    """Projected gradient descent at the server, on gradients that clients send, perhaps compressed.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    extrapolation : {"none", "nesterov"}
        Whether gradients are taken at an extrapolated point, which needs fewer rounds.
    lr, decay, compress, compress_down
        See `GradientMethod`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.quadratics()
    >>> algorithm = fedfw.FedPGD(fedfw.L1Ball(1.0), compress="topk:1")
    >>> run = fedfw.simulate(problem, algorithm, rounds=200)
    >>> fedfw.solve(problem, fedfw.L1Ball(1.0)).residual(run.history[-1].loss) < 1e-3
    True
    """

    extrapolation: Annotated[
        Literal["none", "nesterov"],
        option("whether the server extrapolates its steps, as Nesterov does"),
    ] = "none"

    name: ClassVar[str] = "fedpgd"
    title: ClassVar[str] = "FedPGD"
    revision: ClassVar[int] = 2
    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = "every client's gradient, or how it changes, in each round"
    weighted: ClassVar[bool] = True
    uploads: ClassVar[Mapping[str, Kind]] = {"gradient": Kind.VALUE}
    tuned: ClassVar[float] = 1.6

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {
            "lr": lr_grid(setting, (0.25, 0.5, 1, 2, 4, 8)),
            "extrapolation": ("none", "nesterov"),
        }

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        validate_one_step(self.name, setting)
        return super().configure(setting)

    def init_server(self, run: Run, x: Tensor) -> State:
        if self.extrapolation == "none":
            return {"xbar": x.clone()}
        return {"xbar": x.clone(), "z": x.clone(), "theta": x.new_ones(1)}

    def model_to_send(self, server: State) -> Tensor:
        return server.get("z", server["xbar"])

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        z = msg.xbar.expand(oracles.m, -1).clone()
        return client.private, {"gradient": oracles.gradient(z, times=Weight.ONE)}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Take a projected gradient step from z to x and, with Nesterov's extrapolation, set
        z <- x + beta (x - last x); beta falls back to 0 where the last move points uphill.
        """
        z = self.model_to_send(server)
        x = run.constraint.project(z - msg.rates[0].eta * sums.mean("gradient"))
        if self.extrapolation == "none":
            return {"xbar": x}
        step = x - server["xbar"]
        theta = server["theta"]
        # z - x is along the gradient at z: the step increases the loss if their product is
        # positive.
        turns = ((z - x) * step).sum() > 0
        after = (1 + (1 + 4 * theta.square()).sqrt()) / 2
        beta = torch.where(turns, 0.0, (theta - 1) / after)
        return {"xbar": x, "z": x + beta * step, "theta": torch.where(turns, 1.0, after)}
