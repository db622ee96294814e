"""FedDR's kin: FedADMM, and a proximal augmented Lagrangian method whose subproblems ADMM solves.

FedADMM: the alternating direction method of multipliers with an inexact local step.

    x_i ~ argmin of h_i(x) + <z_i, x - xbar> + ||x - xbar||^2 / (2 eta):   K gradient steps, from the x_i of before
    z_i <- z_i + (x_i - xbar) / eta
    xtilde = mean of all (x_i + eta z_i), the absent ones' last included;   xbar = P(xtilde)

Clients send the change of x_i + eta z_i. At a fixed point x_i = xbar = x* and z_i = -grad h_i(x*),
so xtilde = x* - eta grad F(x*) and x* = P(xtilde): a minimiser.

Reference: Wang, Marella and Anderson, "FedADMM: a federated primal-dual algorithm allowing partial
participation" (2022).

FedPAL: the proximal augmented Lagrangian method, whose subproblems the clients solve by ADMM.

The constraint "w lies in D" has a multiplier y at the server, and everybody is pulled to the centre
v, which is the w of when y was last renewed. Every ``multiplier_every`` rounds y and v are renewed;
each round in between is one step of ADMM on the subproblem

    minimise  F(w) + (beta/2) dist(w + y/beta, D)^2 + ||w - v||^2 / (2 beta)

    client i:  x_i ~ argmin of h_i(x) + a_n ||x - v||^2 / 2 + <z_i, x - w> + ||x - w||^2 / (2 eta):  K gradient steps
               z_i <- z_i + (x_i - w) / eta
    server:    w <- argmin of (beta/2) dist(w + y/beta, D)^2 + a_0 ||w - v||^2 / 2 + ||w - m||^2 / (2 eta),
               m = mean of all x_i + eta z_i, the absent ones' last included;   a_n = n a_0,  a_0 = 1 / ((n + 1) beta)
    renewed:   y <- y + beta (w - P(w + y/beta)),   v <- w;      xbar = P(w)

The server's problem has the solution w = (q r + beta P(r)) / (q + beta) - y/beta with q = 1/eta +
a_0 and r = (m/eta + a_0 v) / q + y/beta: one projection. Clients send the change of x_i + eta z_i.
At a fixed point x_i = w = v = x*, z_i = -grad h_i(x*) and y = -grad F(x*), which is normal to D at
x*: a minimiser.

The paper's problem has constraints c_0(w) <= 0 of the server and c_i(w) <= 0 of each client, with
multipliers [mu_i + beta c_i(w)]_+. Here there is one common set, so that there is one constraint,
which is the server's: c_0(w) = w lies in D in place of the cone of all vectors that are at most 0,
and the distance from D in place of that from the cone. What is done otherwise: the paper ends a
subproblem once its gradient is small, and begins the next one with new z_i, which takes a further
exchange; here it ends after a number of rounds, and clients go on with the z_i they have, which
begin at 0. Absentees are ours, too.

Reference: He, Peng and Sun, "Federated learning with convex global and local constraints" (2024),
arXiv 2310.10117.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
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
from fedfw.algorithms.projected import SplittingAlgorithm, descend, vital
from fedfw.options import option


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

    def pull(self, plan: Plan, state: State, message: Message) -> tuple[Tensor, Tensor, float]:
        """Return the server's point w (p,), and where local steps are pulled to, (m, p), with its
        weight.
        """
        return message.xbar, message.xbar - self.eta * state["z"], 1 / self.eta

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        w, centre, weight = self.pull(plan, state, message)
        x = descend(plan, message.t, gradient, state["x"], centre, weight)
        z = state["z"] + (x - w) / self.eta
        change = (x - state["x"]) + self.eta * (z - state["z"])
        return {"x": x, "z": z}, {"vector": change}


@dataclass(frozen=True)
class FedPAL(FedADMM):
    """FedPAL: the proximal augmented Lagrangian method of He, Peng and Sun, with ADMM among the
    clients.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the local gradient steps; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.
    eta : float
        One over the penalty of ADMM.
    beta : float
        The penalty of the augmented Lagrangian, and one over the weight of the pull to the centre.
    multiplier_every : int
        Rounds from one multiplier of the constraint to the next.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.contrib.FedPAL(fedfw.Box(-1.0, 1.0)), rounds=300)
    >>> round(float(run.x), 2)
    1.0
    """

    beta: Annotated[float, option("penalty of the augmented Lagrangian", gt=0)] = 10.0
    multiplier_every: Annotated[
        int, option("rounds from one multiplier of the constraint to the next", ge=1)
    ] = 1

    name: ClassVar[str] = "fedpal"
    title: ClassVar[str] = "proximal AL (He et al.)"
    contract: ClassVar[Contract] = replace(FedADMM.contract, down=("w", "centre"))

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"lr": cls.steps(setting, (0.5, 1, 2)), "eta": (3.0, 10.0), "beta": (1.0, 10.0)}

    def start_server(self, x: Tensor) -> Server:
        return Server(
            x.clone(),
            {"mean": x.clone(), "w": x.clone(), "centre": x.clone(), "y": torch.zeros_like(x)},
        )

    def pull(self, plan: Plan, state: State, message: Message) -> tuple[Tensor, Tensor, float]:
        w, to_centre, to_w = message.vectors["w"], plan.n * self._share(plan), 1 / self.eta
        weight = to_centre + to_w
        centre = (
            to_centre * message.vectors["centre"] + to_w * (w - self.eta * state["z"])
        ) / weight
        return w, centre, weight

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        vectors, pull = server.vectors, self._share(plan)
        mean, centre, y = (
            vectors["mean"] + aggregate.total / plan.n,
            vectors["centre"],
            vectors["y"],
        )
        q = 1 / self.eta + pull
        r = (mean / self.eta + pull * centre) / q + y / self.beta
        nearest = plan.project(r)
        shifted = (q * r + self.beta * nearest) / (
            q + self.beta
        )  # w + y/beta, between r and its projection
        w = shifted - y / self.beta
        if t % self.multiplier_every == 0:
            y, centre = self.beta * (shifted - nearest), w
        return Server(plan.project(w), {"mean": mean, "w": w, "centre": centre, "y": y})

    def _share(self, plan: Plan) -> float:
        """a_0: the server's share of the pull to the centre; a client's is n times that, because F
        is a mean.
        """
        return 1 / ((plan.n + 1) * self.beta)
