"""Anchored FedFW: now and then every client is given its dual at once.

In the rounds with an anchor client i computes a_i = w_i grad f_i(xbar). Only the sum is needed:

    A = (1/n) sum a_i = grad F(xbar) / n        (dense, sent down once)
    y_i = A - a_i

and in every round, with atoms only,

    g_i = w_i grad f_i(xbar) + y_i + lam_t (x_i - xbar).

With momentum the corrected direction is averaged, d_i <- beta d_i + (1-beta) (w_i grad f_i(xbar) + y_i), and not reset
at anchors; ybar and the penalty, which change with every round, are added to the average and not averaged.

Why gradients are taken at xbar and not at x_i (``gradient_at="own"``, where anchors also set x_i <- xbar): then all
directions add up to grad F(xbar) in every round, because the penalty's parts add up to zero. At own points each client
follows w_i f_i + <y_i, .> alone between anchors. With an anchor every 20 rounds xbar was better on synthetic(1,1), l2,
nuclear and k-sparse sets, own points on l1:10, l1:100 and a9a. That clients of different curvature are the reason is a
guess: quadratics with curvatures from 0.01 to 10 did not show it. In both cases
F(xbar^t) - F* <= (2 + 24 (m-1)) L' D^2 / t for convex losses without penalty, with everyone present and an anchor every
m rounds, L' = n max w_i L_i.

When there is an anchor (``anchor_every="auto"``): the gap at an anchor says whether the rounds since the last one made
progress. If from round s to round t it fell by more than sqrt(s / t), halfway between nothing and the proven s / t,
duals are good for longer, and twice as many rounds pass until the next anchor; else half as many, at least 2 and at
most 40. The first two are 5 rounds apart.

It shares sums of gradients with the server, which plain FedFW never does. At an anchor the server therefore knows the
exact Frank-Wolfe gap. With absentees the mean is over those present, and y_i - ybar is used as in FedFW+.

With ``compress`` client i and the server both hold h_i, zero at first. The client sends C(a_i - h_i), both sides add
what was decoded to h_i, and h_i takes the place of a_i in A and in y_i: all y_i then still add up to zero, and what one
anchor lost the next one makes up for (EF21, Richtarik et al., arXiv 2106.05203). Such a sum is not the gradient of F,
so anchors prove nothing then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
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
from fedfw.algorithms.feedback import bound_to, encoded, refuse_useless
from fedfw.algorithms.oracle_steps import OracleAlgorithm, mean_of, sent_down, with_mean
from fedfw.algorithms.scheduled import Momentum, running_average
from fedfw.atoms import Atom
from fedfw.compression import Compress, Compressor, Readers, make_compressor
from fedfw.options import option

FIRST_WAIT, SHORTEST_WAIT, LONGEST_WAIT = 5, 2, 40
"""Rounds between anchors with anchor_every="auto"."""
PROGRESS = 0.5
"""Gaps are to fall like t ** -PROGRESS, halfway between not at all and the proven t ** -1; else duals are renewed."""

AnchorEvery = Annotated[
    Annotated[int, Field(ge=1)] | Literal["auto"],
    option(
        "rounds between anchors, which share sums of gradients; auto goes by the gap at anchors",
        expected='a whole number of at least 1, or "auto"',
    ),
]


@dataclass(frozen=True)
class FedFWAnchored(Momentum, OracleAlgorithm, GathersSums):
    """Anchored FedFW: now and then every client is given its dual at once, from one sum of gradients.

    It is the method for sparse atoms (l1 and its kin) when clients differ and the server may see sums of gradients.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    penalty : float or str
        lam_0; see `OracleAlgorithm`. With 0 the anchors alone hold the clients together.
    schedule : str, Schedule, callable or None
        Step sizes; see `Scheduled`.
    momentum : float or "auto"
        Weight of past corrected directions; see `Momentum`.
    anchor_every : int or "auto"
        Rounds from one anchor to the next; "auto" goes by the gap at anchors.
    gradient_at : {"xbar", "own"}
        Where clients take their gradients: at the model, or at points of their own, to which anchors hand the model.
        Which is better depends on the problem; docs/algorithms.md has both.
    compress : str
        What is done to the gradients that clients send at anchors, such as "bits:8"; see `fedfw.compression`.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.FedFWAnchored(fedfw.Box(-1.0, 1.0), anchor_every=5), rounds=20)
    >>> float(run.x), run.dense_sums
    (1.0, 4)
    """

    _: KW_ONLY
    anchor_every: AnchorEvery = "auto"
    gradient_at: Annotated[
        Literal["xbar", "own"], option("where clients take their gradients: at the model, or at points of their own")
    ] = "xbar"
    compress: Compress = "none"

    name: ClassVar[str] = "fedfw-anchored"
    title: ClassVar[str] = "FedFW-anchored"
    paces: ClassVar[bool] = True
    contract: ClassVar[Contract] = replace(
        OracleAlgorithm.contract,
        down=("xbar", "ybar"),
        remembers={**OracleAlgorithm.contract.remembers, "y": Kept.REBUILT, "h": Kept.REBUILT},
        sums=True,
        reveals=Reveals.GRADIENTS,
        shares="at each anchor the sum of the gradients of those present",
    )

    @classmethod
    def grid(cls, setting: Setting) -> dict[str, Sequence[Any]]:
        return {
            "anchor_every": ("auto", 5),
            "schedule": ("convex", "linear-decay:0.2"),
            "momentum": (0.9,),
            "penalty": ("auto:0.3", "auto", "auto:3"),
        }

    def resolved(self, setting: Setting) -> Self:
        refuse_useless(self.compress, setting)
        return super().resolved(setting)

    def may_pace(self, setting: Setting) -> bool:
        # Curvature is seen along a client's own way, and not where its points jump in every round.
        return super().may_pace(setting) and self.gradient_at == "own" and self.anchor_every != 1

    def passes(self, local_steps: int, share: float) -> float:
        every = FIRST_WAIT if self.anchor_every == "auto" else self.anchor_every
        return super().passes(local_steps, share) + 1 / every

    @property
    def _compressor(self) -> Compressor | None:
        return make_compressor(self.compress)

    def start_clients(self, x: Tensor) -> State:
        held = {} if self._compressor is None else {"h": torch.zeros_like(x)}
        return super().start_clients(x) | {"y": torch.zeros_like(x, dtype=torch.float64)} | held

    def start_server(self, x: Tensor) -> Server:
        server = super().start_server(x)
        vectors = server.vectors | {"ybar": torch.zeros_like(server.xbar)}
        if self.anchor_every == "auto":  # the round of the next anchor, the rounds between the last two, the last gap
            vectors["pace"] = torch.tensor([1.0, FIRST_WAIT / 2, 1e300], dtype=torch.float64, device=x.device)
        return replace(server, vectors=vectors)

    # --- the anchor: a_i = w_i grad f_i(xbar) goes up, A comes down, y_i = A - a_i ---

    def gathers(self, server: Server, t: int) -> bool:
        if self.anchor_every != "auto":
            return (t - 1) % self.anchor_every == 0
        following, wait, _ = server.vectors["pace"].tolist()
        return bool(t >= following or t == following - wait)  # the latter is the anchor that was gathered just now

    def contribute(self, plan: Plan, state: State, xbar: Tensor, gradient: Gradient, t: int) -> Contributed:
        """The loss and the gradient at xbar.

        F(u) >= F(xbar) + <grad F(xbar), u - xbar> proves a bound on the optimum, but the server is given gradients that
        were rounded. The loss is therefore lowered by what that can change anywhere in the set.
        """
        points = xbar.expand_as(state["x"])
        loss, a = gradient(points, full=True)
        compressor = bound_to(plan, self._compressor)
        if compressor is not None:
            sent = encoded(compressor, plan, a - state["h"], t)
            return Contributed(loss, self.received(plan, state, sent), sent)
        if plan.convex and a.dtype is not torch.float64:
            loss, exact = gradient(points, exact=True)
            loss -= (exact - a).norm(dim=1) * plan.constraint.diameter(tuple(xbar.shape))
        return Contributed(loss, a)

    def sum_readers(self, plan: Plan, p: int, t: int) -> Readers | None:
        compressor = bound_to(plan, self._compressor)
        return None if compressor is None else compressor.readers((p,), plan.constraint.pieces((p,)), draw=t)

    def received(self, plan: Plan, state: State, sent: Atom) -> Tensor:
        return state["h"] + sent.dense(state["h"].dtype)

    def gather(
        self, plan: Plan, server: Server, states: Sequence[State], sent: Sequence[Contributed], t: int
    ) -> tuple[Server, Gathered]:
        ranks, zeros = plan.ranks, torch.zeros_like(server.xbar, dtype=torch.float64)
        counts = sum(len(state["x"]) for state in states), sum(float(piece.loss.double().sum()) for piece in sent)
        each = ranks.numbers(*counts, any(piece.vector.dtype is torch.float32 for piece in sent))
        present, loss, single = (sum(numbers) for numbers in zip(*each, strict=True))
        (total,) = ranks.sums(_added([piece.vector.sum(0, dtype=torch.float64) for piece in sent], zeros))
        mean = (total / present).to(torch.float32 if single else torch.float64)
        learnt = Gathered(mean, loss, total if present == plan.n and self._compressor is None else None)
        if self.anchor_every == "auto":
            pace = self._next_pace(plan, server, mean, t)
            server = replace(server, vectors=server.vectors | {"pace": pace})
        if present == plan.n:  # the y_i add up to zero, and with ``gradient_at="own"`` all points are xbar
            settled = {"ybar": torch.zeros_like(server.vectors["ybar"])}
            if self.gradient_at == "own" and "rest" in server.vectors:
                settled["rest"] = torch.zeros_like(server.vectors["rest"])
            return replace(server, vectors=server.vectors | settled), learnt
        # The new y_i of those present add up to zero; what they held before leaves the sum.
        (leaving,) = ranks.sums(_added([state["y"].sum(0) for state in states], zeros))
        server = replace(server, vectors=server.vectors | {"ybar": server.vectors["ybar"] - leaving / plan.n})
        if self.gradient_at == "xbar":
            return server, learnt
        moved = ranks.sums(_added([state["x"].sum(0) for state in states], zeros))[0] - present * server.xbar
        return with_mean(server, mean_of(server) - moved / plan.n), learnt

    def _next_pace(self, plan: Plan, server: Server, mean: Tensor, t: int) -> Tensor:
        """The round of the next anchor, the rounds until then, and the gap of now, by the mean of what was sent."""
        following, wait, before = server.vectors["pace"].tolist()
        expected = before * (max(following - wait, 1) / t) ** PROGRESS
        gap = plan.n * float(mean.double() @ server.xbar.double() - plan.lmo(mean, t).dot(mean))
        wait = min(2 * wait, LONGEST_WAIT) if gap < expected else max(wait // 2, SHORTEST_WAIT)
        return server.vectors["pace"].new_tensor([t + wait, wait, gap])

    def take_up(self, state: State, xbar: Tensor, sent: Contributed, mean: Tensor) -> State:
        state = state | {"y": mean.double() - sent.vector.double()}
        if self._compressor is not None:
            state["h"] = sent.vector
        if self.gradient_at == "own":
            state["x"] = xbar.expand_as(state["x"]).clone()
            if "past" in state:  # what was remembered of the last step says nothing of the curvature on the way to xbar
                state["past"] = torch.zeros_like(state["past"])
        return state

    # --- every round ---

    def looks_at(self, state: State, message: Message) -> Tensor:
        return state["x"] if self.gradient_at == "own" else message.xbar.expand_as(state["x"])

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


def _added(vectors: list[Tensor], zeros: Tensor) -> Tensor:
    """The sum of vectors (p,), of which a rank may have none."""
    return torch.stack(vectors).sum(0) if vectors else zeros
