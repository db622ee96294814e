"""FedFW+: FedFW with a dual vector y_i on each client, which learns what keeps the clients apart.

Once a round  y_i <- y_i + lam_0 (x_i - xbar),  then FedFW's step with

    g_i = w_i grad f_i(x_i) + lam_t (x_i - xbar) + (y_i - ybar),    ybar = (1/n) sum of all y_j.

With everyone present ybar is zero. With absentees only participants update y_i, the sum drifts, and
without ybar the limit is wrong; the server knows every x_i, so it computes ybar itself and sends it
down.

In a float32 run the xbar that goes down is a rounded mean, and ybar would add up its errors. The
server therefore keeps account of them (``owed``) and lets the next xbar make up for them.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import Contract, Kept, Message, Plan, Rates, Server, State
from fedfw.algorithms.fedfw import FedFW
from fedfw.algorithms.oracle_steps import sent_down
from fedfw.linalg.pull import pulled


@dataclass(frozen=True)
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
        lam_0; see `OracleAlgorithm`.
    schedule : str, Schedule, callable or None
        Step sizes; see `Scheduled`.
    momentum : float or "auto"
        Weight of past gradients; see `Momentum`. On smooth sets 0.9 is much better than 0.

    Examples
    --------
    Two clients with the losses (x - 3)^2 and (x + 1)^2 on [-1, 1]; the best common point is 1.

    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.FedFWPlus(fedfw.Box(-1.0, 1.0), penalty=1.0), rounds=300)
    >>> round(float(run.x), 2)
    1.0
    """

    name: ClassVar[str] = "fedfw+"
    title: ClassVar[str] = "FedFW+"
    coordinatewise: ClassVar[bool] = True
    contract: ClassVar[Contract] = replace(
        FedFW.contract,
        down=("xbar", "ybar"),
        remembers={**FedFW.contract.remembers, "y": Kept.REBUILT},
    )

    def start_clients(self, x: Tensor) -> State:
        return super().start_clients(x) | {"y": torch.zeros_like(x, dtype=torch.float64)}

    def start_server(self, x: Tensor) -> Server:
        server = super().start_server(x)
        zero = torch.zeros_like(server.xbar)
        owed = {"owed": zero} if "rest" in server.vectors else {}
        return replace(server, vectors=server.vectors | {"ybar": zero} | owed)

    def broadcast(
        self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int
    ) -> tuple[Server, Message]:
        vectors = server.vectors
        ybar, owed = vectors["ybar"], vectors.get("owed")
        if len(who) == plan.n and not bool(
            ybar.any()
        ):  # the changes of the y_i add up to what xbar falls short of
            if owed is not None:
                server = replace(server, vectors=vectors | {"owed": owed + vectors["rest"]})
            return server, Message(t, server.xbar)
        (apart,) = plan.ranks.sums((x - server.xbar).sum(0))
        ybar = ybar + (plan.lam_0 / plan.n) * apart
        if owed is not None:
            ybar = ybar + plan.lam_0 * owed
            vectors = vectors | {"owed": torch.zeros_like(owed)}
        server = replace(server, vectors=vectors | {"ybar": ybar})
        return server, Message(t, server.xbar, {"ybar": sent_down(server, ybar)})

    def regroup(self, server: Server, clients: State, weights: Tensor | None = None) -> Server:
        settled = {"owed": torch.zeros_like(server.xbar)} if "owed" in server.vectors else {}
        server = super().regroup(replace(server, vectors=server.vectors | settled), clients)
        return replace(server, vectors=server.vectors | {"ybar": clients["y"].mean(0)})

    def receive(self, plan: Plan, shared: State, message: Message) -> State:
        return shared | {"y": pulled(shared["y"], shared["x"], message.xbar, plan.lam_0)}

    def direction(
        self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates
    ) -> tuple[State, Tensor]:
        state, g = super().direction(plan, state, message, a, rates)
        g += state["y"]
        if "ybar" in message.vectors:
            g -= message.vectors["ybar"]
        return state, g
