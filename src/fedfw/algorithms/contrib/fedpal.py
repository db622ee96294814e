"""FedPAL: the proximal augmented Lagrangian method, whose subproblems the clients solve by ADMM.

The constraint "w lies in D" has a multiplier y at the server, and all are pulled to the centre
v, which is the w of when y was last renewed. Every ``multiplier_every`` rounds y and v are renewed;
each round in between is one step of ADMM on the subproblem

    minimise  F(w) + (beta/2) dist(w + y/beta, D)^2 + ||w - v||^2 / (2 beta)

    client i:  x_i ~ argmin of h_i(x) + a_n ||x - v||^2 / 2 + <z_i, x - w> + ||x - w||^2 / (2 eta):
               K gradient steps
               z_i <- z_i + (x_i - w) / eta
    server:    w <- argmin of (beta/2) dist(w + y/beta, D)^2
                              + a_0 ||w - v||^2 / 2 + ||w - m||^2 / (2 eta),
               m = mean of all x_i + eta z_i, the absent ones' last included;
               a_n = n a_0,  a_0 = 1 / ((n + 1) beta)
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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import Affine, Message, Present, Run, State, Sums
from fedfw.algorithms.contrib.fedadmm import FedADMM
from fedfw.algorithms.learning_rate import lr_grid
from fedfw.algorithms.setting import Setting
from fedfw.options import option


@dataclass(frozen=True, kw_only=True)
class FedPAL(FedADMM):
    """FedPAL: the proximal augmented Lagrangian method of He, Peng and Sun, with ADMM among the
    clients.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    eta : float
        One over the penalty of ADMM.
    beta : float
        The penalty of the augmented Lagrangian, and one over the weight of the pull to the centre.
    multiplier_every : int
        Rounds from one multiplier of the constraint to the next.
    lr, decay, compress, compress_down
        See `GradientMethod`.

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
    downloads: ClassVar[tuple[str, ...]] = ("centre",)
    means: ClassVar[Mapping[str, str]] = {"mean": "xhat"}

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        return {"lr": lr_grid(setting, (0.5, 1, 2)), "eta": (3.0, 10.0), "beta": (1.0, 10.0)}

    def init_server(self, run: Run, x: Tensor) -> State:
        mean = x.to(torch.float64, copy=True)
        zero = torch.zeros_like(x)
        return {"xbar": x.clone(), "mean": mean, "w": x.clone(), "centre": x.clone(), "y": zero}

    def model_to_send(self, server: State) -> Tensor:
        return server["w"]

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        return server, {"centre": server["centre"]}

    def pull(self, run: Run, z: Tensor, msg: Message) -> tuple[Tensor, float]:
        """Return the centre and the weight of the quadratic below, equal up to a constant.

        ::

            (weight / 2) |x - centre|^2 = n a_0 |x - v|^2 / 2 + <z, x - w> + |x - w|^2 / (2 eta)
        """
        w = msg.xbar
        to_centre = run.n * self._share(run)
        to_w = 1 / self.eta
        weight = to_centre + to_w
        centre = to_centre * msg.vectors["centre"] + to_w * (w - self.eta * z)
        return centre / weight, weight

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Minimise the augmented Lagrangian in w, and return xbar = P(w); every `multiplier_every`
        rounds also renew the multiplier, y <- y + beta (w - P(w + y/beta)), and the centre v <- w.
        """
        pull = self._share(run)  # a_0, the weight of the pull to the centre v
        # m, the mean of all x_i + eta z_i, with the last ones of absent clients
        mean = server["mean"] + sums.total("change").double() / run.n
        centre = server["centre"]
        y = server["y"]
        # w = (q r + beta P(r)) / (q + beta) - y/beta
        q = 1 / self.eta + pull
        r = (mean.to(run.dtype) / self.eta + pull * centre) / q + y / self.beta
        nearest = run.constraint.project(r)
        # w + y/beta, between r and its projection.
        shifted = (q * r + self.beta * nearest) / (q + self.beta)
        w = shifted - y / self.beta
        if msg.t % self.multiplier_every == 0:
            y = self.beta * (shifted - nearest)  # P(w + y/beta) is P(r)
            centre = w
        xbar = run.constraint.project(w)
        return {"xbar": xbar, "mean": mean, "w": w, "centre": centre, "y": y}

    def _share(self, run: Run) -> float:
        """Return a_0, the server's share of the pull to the centre; a client's is n times that,
        because F is a mean.
        """
        return 1 / ((run.n + 1) * self.beta)
