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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from fedfw.algorithms.contract import (
    Aggregate,
    Contract,
    Gradient,
    Lmo,
    Message,
    Payload,
    Plan,
    Reveals,
    Server,
    Setting,
    State,
    Up,
)
from fedfw.algorithms.projected import ProjectedAlgorithm
from fedfw.options import option


@dataclass(frozen=True)
class FastFedDA(ProjectedAlgorithm):
    """Fast-FedDA: federated dual averaging for strongly convex losses, with steps that become
    shorter.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the first local gradient step; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round, beside what ``strong`` does; see
        `ProjectedAlgorithm`.
    strong : float
        lr mu: the modulus of strong convexity mu that is assumed, in units of one over the step
        size. The step size has halved after 2 / strong local steps.

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
    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        down=("u",),
        reveals=Reveals.GRADIENTS,
        shares="every client's sum of local gradients in each round",
        weighted=True,
    )
    tuned_step: ClassVar[float] = 1.6

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"lr": cls.steps(setting, (1, 2, 4, 8)), "strong": (0.001, 0.01, 0.1)}

    def start_clients(self, x: Tensor) -> State:
        return {"x": x[:, :0]}

    def start_server(self, x: Tensor) -> Server:
        return Server(x.clone(), {"u": x.clone()})

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        begin, sigma = message.vectors["u"], self.strong / 2
        u = begin.expand(len(state["x"]), -1)
        for k in range(plan.local_steps):
            step = 1 / (1 + sigma * ((message.t - 1) * plan.local_steps + k + 1))
            w = plan.project(u)
            _, a = gradient(w, plain=True)
            u = u - step * (plan.lr_at(message.t) * a - sigma * (w - u))
        return {}, {"vector": u - begin}

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        u = server.vectors["u"] + aggregate.mean
        return Server(plan.project(u), {"u": u})
