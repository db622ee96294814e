"""DeFW: decentralised Frank-Wolfe. There is no server: clients average with their neighbours on a graph.

    x'_i = sum_j W_ij x_j                                                    the neighbours' points
    d_i <- sum_j W_ij (d_j + grad h_j(x'_j) - grad h_j(x'_j of last round))  tracks the gradient of F
    x_i <- (1 - eta_t) x'_i + eta_t argmin over s in D of <d_i, s>

W has the weights of Metropolis (`topology.py`), which keep the means: the mean of the d_i is that of the latest
grad h_i(x'_i), with h_i = n w_i f_i, and xbar is the mean of the x_i. d_i and the last gradient begin at zero. On the
complete graph W_ij = 1/n and every client takes the steps of Frank-Wolfe itself. Once all x_i and d_i agree, xbar rests
where the gradient of F does not let the oracle's answer be better, which is at minimisers.

Nobody is in the middle, so two things are the simulator's: it mixes all clients at once, in `client_step`, and it
judges xbar, which no client knows. A client sends its x_i and its d_i + change of gradient, two dense vectors, to each
of its neighbours: that is what the ledger counts, as bytes up. Nothing goes down. The paper may average several times a
round; here it is once.

Reference: Wai, Lafond, Scaglione and Moulines, "Decentralized Frank-Wolfe algorithm for convex and nonconvex problems"
(2017), arXiv 1612.01216.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import (
    Aggregate,
    Contract,
    Evidence,
    Gradient,
    Lmo,
    Message,
    Plan,
    Reveals,
    Server,
    Setting,
    State,
    Up,
)
from fedfw.algorithms.projected import vital
from fedfw.algorithms.scheduled import Scheduled
from fedfw.algorithms.topology import EXPECTED, NAMES, edges_of, metropolis
from fedfw.atoms import Atom, Dense
from fedfw.options import option


@dataclass(frozen=True, eq=False, kw_only=True)
class ToNeighbours(Dense):
    """A stack of points (n, p) of which each goes to all neighbours, and another vector of its size with it.

    ``degrees`` (n,) are the numbers of neighbours, on the host.
    """

    stacked: ClassVar[tuple[str, ...]] = ("values", "degrees")

    degrees: Tensor

    @property
    def nbytes(self) -> int:
        return 2 * int(self.degrees.sum()) * (1 + self.values.shape[1] * self.values.element_size())


@dataclass(frozen=True)
class DeFW(Scheduled):
    """DeFW: decentralised Frank-Wolfe on a graph; clients average points and tracked gradients with their neighbours.

    It has no server, so it runs in simulations only, and everyone takes part in every round.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    schedule : str, Schedule, callable or None
        Step sizes; see `Scheduled`.
    graph : str
        Who talks to whom: "ring", "complete", "grid", or "erdos:P", a random graph in which each pair of clients are
        neighbours with probability P; see `fedfw.algorithms.topology.edges_of`.

    Examples
    --------
    >>> import fedfw
    >>> run = fedfw.simulate(fedfw.testing.two_quadratics(), fedfw.DeFW(fedfw.Box(-1.0, 1.0)), rounds=10)
    >>> float(run.x)
    1.0
    """

    _: KW_ONLY
    graph: Annotated[
        str, option(f"who talks to whom where there is no server: {', '.join(NAMES)}", expected=EXPECTED)
    ] = "ring"

    name: ClassVar[str] = "defw"
    title: ClassVar[str] = "DeFW"
    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        down=(),
        remembers=vital("x", "d", "last"),
        points=True,
        reveals=Reveals.GRADIENTS,
        shares="to its neighbours: every client's point, and its average of the gradients around it, in each round",
        serverless=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        edges_of(self.graph, 1)  # an unknown name is refused here, not when a run begins

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"schedule": ("convex", "nonconvex", *(f"linear-decay:{eta}" for eta in (0.02, 0.05, 0.1, 0.2)))}

    def plan(self, setting: Setting) -> Plan:
        if setting.local_steps > 1:
            raise ValueError(f"local_steps={setting.local_steps}: {self.name} takes one step a round, expected 1")
        edges_of(self.graph, setting.n)  # which refuses a graph that cannot be connected
        return super().plan(setting)

    def start_clients(self, x: Tensor) -> State:
        return {"x": x, "d": torch.zeros_like(x), "last": torch.zeros_like(x)}

    def client_step(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Atom, Evidence | None]:
        points, own = plan.ranks.rows(state["x"])  # neighbours may be on other ranks
        W = metropolis(self.graph, plan.n, points.dtype, points.device)[own]
        x = W @ points
        _, a = gradient(x)
        slope = plan.n * a
        d = W @ plan.ranks.rows(state["d"] + slope - state["last"])[0]
        x = lmo(d).step(x, plan.rates(message.t).eta)
        degrees = edges_of(self.graph, plan.n).sum(1)[own]
        sent = ToNeighbours(shape=(x.shape[1],), batched=True, precision=x.dtype, values=x, degrees=degrees)
        return {"x": x, "d": d, "last": slope}, sent, None

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        """The mean of all points, which the simulator judges and no client knows."""
        return replace(server, xbar=aggregate.mean)
