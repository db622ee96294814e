"""Fast-FedDA: federated dual averaging for strongly convex losses; its steps become shorter like
one over their number.

Dual averaging minimises all linear models of the loss so far. Here they are the quadratic ones of a
loss with the modulus of strong convexity mu, and w is where the gradients g_j were taken, in steps
j = 1, ..., t:

    w_t+1 = argmin over D of sum_j ( <g_j, w> + (mu/4) ||w - w_j||^2 ) + ||w - x^1||^2 / (2 lr)
          = P(u_t+1),   u_t+1 = (x^1 / lr - sum_j (g_j - (mu/2) w_j)) / (1 / lr + t mu/2)

With strong = lr mu that is a running average, in which both sides move u by one vector a round:

    client i:  u_i <- u;   K times, with t one more each:
               w = P(u_i),   u_i <- u_i - (lr grad f_i(w) - (strong/2) (w - u_i)) / (1 + t strong/2)
    server:    u <- u + mean over those present, with the weights w_i, of u_i - u;   xbar = P(u)

Where w = x* in every step, u comes to x* - (2/mu) grad F(x*), which the projection takes to x*:
minimisers are fixed points of xbar, with one local step, whether or not the losses have the modulus
that is assumed; with more, clients drift by ever less, because their steps become shorter. With
strong = 0 this is FedDA.

The paper sends the sum of the gradients and that of the points, of which only the difference above
is ever used: it is one vector up instead of two. All steps have the same weight, as in the authors'
experiments. Their C-FedDA pulls all local steps of a round to the round's first point in place of
their own w, which is the same with one local step.

Reference: Bao, Crawshaw, Luo and Liu, "Fast composite optimization and statistical recovery in
federated learning" (2022), arXiv 2207.08204. The method that it makes fast is FedDA, of Yuan,
Zaheer and Reddi (2021).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from fedfw.algorithms.contract import (
    Affine,
    Client,
    Message,
    Oracles,
    Payload,
    Reveals,
    Run,
    State,
    Sums,
    Weight,
)
from fedfw.algorithms.learning_rate import lr_grid
from fedfw.algorithms.local_changes import LocalChanges
from fedfw.algorithms.setting import Setting
from fedfw.options import option


@dataclass(frozen=True, kw_only=True)
class FastFedDA(LocalChanges):
    """Fast-FedDA: federated dual averaging for strongly convex losses, with steps that become
    shorter.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    strong : float
        lr mu: the modulus of strong convexity mu that is assumed, in units of one over the step
        size. The step size has halved after 2 / strong local steps.
    lr, decay, compress, compress_down
        See `GradientMethod`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.contrib.FastFedDA(fedfw.Box(-1.0, 1.0)), rounds=20)
    >>> round(float(run.x), 2)
    1.0
    """

    strong: Annotated[
        float, option("modulus of strong convexity that is assumed, times the step size", ge=0)
    ] = 0.01

    name: ClassVar[str] = "fast-fedda"
    title: ClassVar[str] = "Fast-FedDA"
    revision: ClassVar[int] = 2
    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = "every client's sum of local gradients in each round"
    tuned: ClassVar[float] = 1.6

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"lr": lr_grid(setting, (1, 2, 4, 8)), "strong": (0.001, 0.01, 0.1)}

    def init_server(self, run: Run, x: Tensor) -> State:
        return {"xbar": x.clone(), "u": x.clone()}

    def model_to_send(self, server: State) -> Tensor:
        return server["u"]

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take dual steps u <- u - step (eta grad f_i(w) - sigma (w - u)), where w is the
        projection of u, and send how u changes.
        """
        sigma = self.strong / 2
        u = msg.xbar.expand(oracles.m, -1)
        for k, rates in enumerate(msg.rates):
            steps_so_far = (msg.t - 1) * len(msg.rates) + k + 1
            step = 1 / (1 + sigma * steps_so_far)
            w = run.constraint.project(u, batch=True)
            a = oracles.gradient(w, times=Weight.ONE)
            u = u - step * (rates.eta * a - sigma * (w - u))
        return client.private, {"update": u - msg.xbar}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        u = server["u"] + sums.mean("update")
        return {"xbar": run.constraint.project(u), "u": u}
