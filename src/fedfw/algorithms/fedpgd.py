"""FedPGD: projected gradient descent at the server, on gradients that clients send; also with
Nesterov's extrapolation.

    client i:  sends grad f_i(z)
    server:    x <- P(z - lr_t grad F(z)),    grad F(z) = the mean of what clients sent, with the weights w_i
               z <- x, or with extrapolation  z <- x + beta (x - the last x),
               beta = (theta - 1) / theta',  theta' = (1 + sqrt(1 + 4 theta^2)) / 2,  theta <- theta'

theta begins at 1, and does so again after a step that turns against the direction, <z - x, x - the
last x> > 0. The model is x, which lies in D; z may lie outside. Its only fixed points are the
minimisers. With `compress` it is EF21 with a projection (`fedfw.algorithms.feedback`), and with
both its accelerated form, for which nothing is proven.

References: Nesterov, "A method for solving a convex programming problem with rate of convergence
O(1/k^2)" (1983); Beck and Teboulle, "A fast iterative shrinkage-thresholding algorithm" (2009);
O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes" (2015).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fedfw.algorithms.contract import Aggregate, Contract, Plan, Reveals, Server, Setting, State, Up
from fedfw.algorithms.feedback import REMEMBERS, SendsGradients
from fedfw.algorithms.projected import ProjectedAlgorithm
from fedfw.options import option


@dataclass(frozen=True)
class FedPGD(SendsGradients, ProjectedAlgorithm):
    """Projected gradient descent at the server, on gradients that clients send, perhaps compressed.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.
    extrapolation : {"none", "nesterov"}
        Whether gradients are taken at an extrapolated point, which needs fewer rounds.
    compress : str
        What is done to the gradients: "topk:64", for example; see `fedfw.compression`.
    compress_down : str
        What is done to the point that the server sends: "none", or "topk:64" for its 64 largest
        changes.

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
    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        remembers=REMEMBERS,
        reveals=Reveals.GRADIENTS,
        shares="every client's gradient, or how it changes, in each round",
        weighted=True,
    )
    tuned_step: ClassVar[float] = 1.6

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {
            "lr": cls.steps(setting, (0.25, 0.5, 1, 2, 4, 8)),
            "extrapolation": ("none", "nesterov"),
        }

    @property
    def sends_another_point(self) -> bool:
        return self.extrapolation != "none" or super().sends_another_point

    def start_clients(self, x: Tensor) -> State:
        return super().start_clients(x) | {"x": x[:, :0]}

    def start_server(self, x: Tensor) -> Server:
        server = super().start_server(x)
        if self.extrapolation == "none":
            return server
        return replace(server, vectors=server.vectors | {"z": x.clone(), "theta": x.new_ones(1)})

    def next_point(self, server: Server) -> Tensor:
        return server.vectors.get("z", server.xbar)

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        z = self.next_point(server)
        x = plan.project(z - plan.lr_at(t) * aggregate.mean)
        if self.extrapolation == "none":
            return replace(server, xbar=x)
        step, theta = x - server.xbar, server.vectors["theta"]
        turns = ((z - x) * step).sum() > 0
        after = (1 + (1 + 4 * theta.square()).sqrt()) / 2
        beta = torch.where(turns, 0.0, (theta - 1) / after)
        vectors = {"z": x + beta * step, "theta": torch.where(turns, 1.0, after)}
        return replace(server, xbar=x, vectors=server.vectors | vectors)
