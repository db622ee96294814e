"""Anchored FedFW: now and then every client is given its dual at once.

In rounds t = 1, m+1, 2m+1, ... client i computes a_i = w_i grad f_i(xbar). Only the sum is needed:

    A = (1/n) sum a_i = grad F(xbar) / n        (dense, sent down once)
    y_i = A - a_i,   x_i <- xbar

and in every round, with atoms only,

    g_i = w_i grad f_i(x_i) + y_i (+ lam_t (x_i - xbar), lam_0 = 0 by default).

With momentum the corrected direction is averaged, d_i <- beta d_i + (1-beta) (w_i grad f_i(x_i) + y_i), and not reset
at anchors; ybar and the penalty, which change with every round, are added to the average and not averaged.
F(xbar^t) - F* <= (2 + 24 (m-1)) L' D^2 / t for convex losses with everyone present, L' = n max w_i L_i.

It shares sums of gradients with the server, which plain FedFW never does. At an anchor the server therefore knows the
exact Frank-Wolfe gap. With absentees the mean is over those present, and y_i - ybar is used as in FedFW+; for that the
participants' old y_i are summed too, a second dense vector up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.base import (
    Contract,
    Contributed,
    Gathered,
    GathersSums,
    Gradient,
    Kept,
    Message,
    Plan,
    Rates,
    Reveals,
    Server,
    Setting,
    State,
)
from fedfw.algorithms.oracle_steps import OracleAlgorithm, Penalty, mean_of, sent_down, with_mean
from fedfw.algorithms.scheduled import Momentum, running_average
from fedfw.options import option


@dataclass(frozen=True)
class FedFWAnchored(Momentum, OracleAlgorithm, GathersSums):
    """Anchored FedFW: now and then every client is given its dual at once, from one sum of gradients.

    It is the method for sparse atoms (l1 and its kin) when clients differ and the server may see sums of gradients.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    penalty : float or str
        lam_0, by default 0: the anchors hold the clients together.
    schedule : str, Schedule, callable or None
        Step sizes; see `Scheduled`.
    momentum : float or "auto"
        Weight of past corrected directions; see `Momentum`.
    anchor_every : int
        Rounds from one anchor to the next.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.FedFWAnchored(fedfw.Box(-1.0, 1.0), anchor_every=5), rounds=20)
    >>> float(run.x), run.dense_sums
    (1.0, 4)
    """

    _: KW_ONLY
    penalty: Penalty = 0.0
    anchor_every: Annotated[int, option("rounds between anchors, which share sums of gradients", ge=1)] = 20

    name: ClassVar[str] = "fedfw-anchored"
    title: ClassVar[str] = "FedFW-anchored"
    paces: ClassVar[bool] = True
    contract: ClassVar[Contract] = replace(
        OracleAlgorithm.contract,
        down=("xbar", "ybar"),
        remembers={**OracleAlgorithm.contract.remembers, "y": Kept.REBUILT},
        sums=True,
        reveals=Reveals.GRADIENTS,
        shares="at each anchor the sum of the gradients of those present",
    )

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {"anchor_every": (5, 20), "momentum": (0.0, 0.9), "schedule": cls.step_grid(setting)}

    def may_pace(self, setting: Setting) -> bool:
        return super().may_pace(setting) and self.anchor_every > 1  # else points jump in every round

    def passes(self, local_steps: int, share: float) -> float:
        return super().passes(local_steps, share) + 1 / self.anchor_every

    def start_clients(self, x: Tensor) -> State:
        return super().start_clients(x) | {"y": torch.zeros_like(x, dtype=torch.float64)}

    def start_server(self, x: Tensor) -> Server:
        server = super().start_server(x)
        return replace(server, vectors=server.vectors | {"ybar": torch.zeros_like(server.xbar)})

    # --- the anchor: a_i = w_i grad f_i(xbar) goes up, A comes down, y_i = A - a_i and x_i <- xbar ---

    def gathers(self, t: int) -> bool:
        return (t - 1) % self.anchor_every == 0

    def contribute(self, plan: Plan, state: State, xbar: Tensor, gradient: Gradient) -> Contributed:
        """The loss and the gradient at xbar.

        F(u) >= F(xbar) + <grad F(xbar), u - xbar> proves a bound on the optimum, but the server is given gradients that
        were rounded. The loss is therefore lowered by what that can change anywhere in the set.
        """
        points = xbar.expand_as(state["x"])
        loss, a = gradient(points, full=True)
        if plan.convex and a.dtype is not torch.float64:
            loss, exact = gradient(points, exact=True)
            loss -= (exact - a).norm(dim=1) * plan.constraint.diameter(tuple(xbar.shape))
        return Contributed(loss, a)

    def gather(
        self, plan: Plan, server: Server, states: Sequence[State], sent: Sequence[Contributed]
    ) -> tuple[Server, Gathered]:
        xbar, vectors = server.xbar, server.vectors
        present = sum(len(state["x"]) for state in states)
        total = torch.stack([piece.vector.sum(0, dtype=torch.float64) for piece in sent]).sum(0)
        mean = (total / present).to(sent[0].vector.dtype)
        loss = sum(float(piece.loss.double().sum()) for piece in sent)
        if present == plan.n:  # all points are xbar, and all y_i add up to zero
            settled = {name: torch.zeros_like(vector) for name, vector in vectors.items()}
            return replace(server, vectors=settled), Gathered(mean, loss, total)
        # The new y_i of those present add up to zero; what they held before leaves the sum. Their points move to xbar.
        leaving = torch.stack([state["y"].sum(0) for state in states]).sum(0)
        moved = torch.stack([state["x"].sum(0) for state in states]).sum(0) - present * xbar
        server = replace(server, vectors=vectors | {"ybar": vectors["ybar"] - leaving / plan.n})
        return with_mean(server, mean_of(server) - moved / plan.n), Gathered(mean, loss, None)

    def take_up(self, state: State, xbar: Tensor, sent: Contributed, mean: Tensor) -> State:
        # Points jump to xbar: what was remembered of the last step says nothing of the curvature on the way there.
        jumped = {"past": torch.zeros_like(state["past"])} if "past" in state else {}
        return state | {"y": mean.double() - sent.vector.double(), "x": xbar.expand_as(state["x"]).clone()} | jumped

    # --- every round ---

    def broadcast(self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int) -> tuple[Server, Message]:
        ybar = server.vectors["ybar"]
        return server, Message(t, server.xbar, {"ybar": sent_down(server, ybar)} if bool(ybar.any()) else {})

    def direction(self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates) -> tuple[State, Tensor]:
        g = a + state["y"]
        if self.beta:
            state, d = running_average(state, g.to(a.dtype), 1 - self.beta)
            g = d.to(g.dtype, copy=True)
        if "ybar" in message.vectors:
            g -= message.vectors["ybar"]
        if plan.lam_0:
            g += rates.lam * (state["x"] - message.xbar)
        return state, g

    def regroup(self, server: Server, clients: State, weights: Tensor | None = None) -> Server:
        server = super().regroup(server, clients, weights)
        return replace(server, vectors=server.vectors | {"ybar": clients["y"].mean(0)})
