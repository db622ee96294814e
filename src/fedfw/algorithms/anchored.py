"""Anchored FedFW: now and then every client is given its dual at once.

In the rounds with an anchor client i computes c_i = w_i grad f_i(xbar) and sends it. It remembers
this last anchor of its own, and the server the sum of the last anchors of all clients, present or
not. Their mean goes down:

    C = (1/n) sum c_i        (dense; sent to each client when it has changed)

and in every round, with atoms only,

    g_i = w_i grad f_i(xbar) - c_i + C + lam_t (x_i - xbar).

With everyone present C is grad F(xbar) / n, and C - c_i is the dual y_i of the paper's FedFW+. With
absentees anchors are of different ages: each client takes off its own, and the server adds all of
them, so that the directions of all clients add up to the gradient of F at xbar, whoever renewed an
anchor last (the control variates of `fedlmo`). C is the mean over the clients that have an anchor;
one that has none uses w_i grad f_i(xbar) as it is.

With momentum the corrected direction is averaged, d_i <- beta d_i + (1-beta) (w_i grad f_i(xbar) -
c_i + C), and not reset at anchors; the penalty, which changes with every round, is added to the
average and not averaged.

Why gradients are taken at xbar and not at x_i (``gradient_at="own"``, where anchors also set x_i <-
xbar): then all directions add up to grad F(xbar) in every round, because the penalty's parts add up
to zero. At own points each client follows w_i f_i + <C - c_i, .> alone between anchors. With an
anchor every 20 rounds xbar was better on synthetic(1,1), l2, nuclear and k-sparse sets, own points
on l1:10, l1:100 and a9a. That clients of different curvature are the reason is a guess: quadratics
with curvatures from 0.01 to 10 did not show it. In both cases F(xbar^t) - F* <= (2 + 24 (m-1)) L'
D^2 / t for convex losses without penalty, with everyone present and an anchor every m rounds, L' =
n max w_i L_i.

When there is an anchor (``anchor_every="auto"``): the gap at an anchor says whether the rounds
since the last one made progress. If from round s to round t it fell by more than sqrt(s / t),
halfway between nothing and the proven s / t, anchors are good for longer, and twice as many rounds
pass until the next one; else half as many, at least 2 and at most 40. The first two are 5 rounds
apart. With absentees it is the gap by the direction C.

It shares sums of gradients with the server, which plain FedFW never does. At an anchor where
everyone is present the server therefore knows the exact Frank-Wolfe gap; where clients are absent
some anchors are old, and it does not.

With ``compress`` the client sends C(w_i grad f_i(xbar) - c_i), compressed, and both sides add what
was decoded to c_i: what one anchor lost the next one makes up for (EF21, Richtarik et al., arXiv
2106.05203). Such a sum is not the gradient of F, so anchors prove nothing then.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fedfw.algorithms.channels import compress, compressor_of
from fedfw.algorithms.contract import (
    Contract,
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
from fedfw.algorithms.gathering import Contributed, Gathered, GathersSums
from fedfw.algorithms.oracle_steps import OracleAlgorithm, mean_of, sent_down, with_mean
from fedfw.algorithms.scheduled import Momentum, running_average
from fedfw.atoms import Atom
from fedfw.compression import Compress
from fedfw.linalg.sums import exact_sum
from fedfw.options import limits, option

FIRST_WAIT, SHORTEST_WAIT, LONGEST_WAIT = 5, 2, 40
"""Rounds between anchors with anchor_every="auto"."""
PROGRESS = 0.5
"""Gaps are to fall like t ** -PROGRESS, halfway between not at all and the proven t ** -1; else
duals are renewed.
"""

AnchorEvery = Annotated[
    Annotated[int, limits(ge=1)] | Literal["auto"],
    option(
        "rounds between anchors, which share sums of gradients; auto goes by the gap at anchors",
        expected='a whole number of at least 1, or "auto"',
    ),
]


@dataclass(frozen=True)
class FedFWAnchored(Momentum, OracleAlgorithm, GathersSums):
    """Anchored FedFW: now and then every client is given its dual at once, from one sum of
    gradients.

    It is the method for sparse atoms (l1 and its kin) when clients differ and the server may see
    sums of gradients.

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
        Where clients take their gradients: at the model, or at points of their own, to which
        anchors hand the model. Which is better depends on the problem; docs/algorithms.md has both.
    compress : str
        What is done to the gradients that clients send at anchors, such as "bits:8"; see
        `fedfw.compression`.

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
        Literal["xbar", "own"],
        option("where clients take their gradients: at the model, or at points of their own"),
    ] = "xbar"
    compress: Compress = "none"

    name: ClassVar[str] = "fedfw-anchored"
    title: ClassVar[str] = "FedFW-anchored"
    revision: ClassVar[int] = 2
    paces: ClassVar[bool] = True
    contract: ClassVar[Contract] = replace(
        OracleAlgorithm.contract,
        down=("xbar", "c"),
        remembers={
            **OracleAlgorithm.contract.remembers,
            "c": Kept.REBUILT,
            "anchored": Kept.REBUILT,
        },
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

    def may_pace(self, setting: Setting) -> bool:
        # Curvature is seen along a client's own way, and not where its points jump in every round.
        return super().may_pace(setting) and self.gradient_at == "own" and self.anchor_every != 1

    def passes(self, local_steps: int, share: float) -> float:
        every = FIRST_WAIT if self.anchor_every == "auto" else self.anchor_every
        return super().passes(local_steps, share) + 1 / every

    def start_clients(self, x: Tensor) -> State:
        anchors = {
            "c": torch.zeros_like(x),
            "anchored": x.new_zeros(len(x), 1),
        }  # 1 for clients that have one
        return super().start_clients(x) | anchors

    def start_server(self, x: Tensor) -> Server:
        server = super().start_server(x)
        if self.anchor_every != "auto":
            return server
        # The round of the next anchor, the rounds between the last two, the last gap.
        pace = torch.tensor([1.0, FIRST_WAIT / 2, 1e300], dtype=torch.float64, device=x.device)
        return replace(server, vectors=server.vectors | {"pace": pace})

    # --- the anchor: c_i = w_i grad f_i(xbar) goes up, and the mean of all c_i down with the step
    # ---

    def gathers(self, server: Server, t: int) -> bool:
        if self.anchor_every != "auto":
            return (t - 1) % self.anchor_every == 0
        following, wait, _ = server.vectors["pace"].tolist()
        return bool(
            t >= following or t == following - wait
        )  # the latter is the anchor that was gathered just now

    def contribute(
        self, plan: Plan, state: State, xbar: Tensor, gradient: Gradient, t: int
    ) -> Contributed:
        """The loss and the gradient at xbar.

        F(u) >= F(xbar) + <grad F(xbar), u - xbar> proves a bound on the optimum, but the server is
        given gradients that were rounded. The loss is therefore lowered by what that can change
        anywhere in the set.
        """
        points = xbar.expand_as(state["x"])
        loss, a = gradient(points, full=True)
        compressor = compressor_of(self, plan, gathered=True)
        if compressor is None and plan.convex and a.dtype is not torch.float64:
            loss, exact = gradient(points, exact=True)
            loss -= (exact - a).norm(dim=1) * plan.constraint.diameter(tuple(xbar.shape))
        sent = compress(compressor, plan, a if compressor is None else a - state["c"], t)
        return Contributed(loss, self.received(state, sent), sent)

    def received(self, state: State, sent: Atom) -> Tensor:
        vector = sent.dense(state["c"].dtype)
        return vector if self.compressor is None else state["c"] + vector

    def gather(
        self,
        plan: Plan,
        server: Server,
        states: Sequence[State],
        sent: Sequence[Contributed],
        t: int,
    ) -> tuple[Server, Gathered]:
        ranks = plan.ranks
        count = sum(len(state["x"]) for state in states)
        own_loss = sum(float(piece.loss.double().sum()) for piece in sent)
        newcomers = sum(len(state["x"]) - float(state["anchored"].sum()) for state in states)
        each = ranks.numbers(count, own_loss, newcomers)
        present, loss, new = (sum(numbers) for numbers in zip(*each, strict=True))
        if present == plan.n:
            zeros = torch.zeros_like(server.xbar)
            (total,) = ranks.sums(
                _added([piece.vector.sum(0, dtype=torch.float64) for piece in sent], zeros)
            )
            server = _with_anchors(server, torch.stack([total, zeros]), plan.n)
            learnt = Gathered(loss, total if self.compressor is None else None)
            if self.gradient_at == "own" and "rest" in server.vectors:  # all points are xbar
                server = replace(
                    server,
                    vectors=server.vectors | {"rest": torch.zeros_like(server.vectors["rest"])},
                )
        else:
            total, anchored = _anchors_of(server)
            changes = [
                _changes(state["c"], piece.vector)
                for state, piece in zip(states, sent, strict=True)
            ]
            each_rank, _ = ranks.rows(exact_sum(torch.cat([torch.zeros_like(total), *changes])))
            server = _with_anchors(server, exact_sum(torch.cat([total, each_rank])), anchored + new)
            learnt = Gathered(loss, None)
        if self.anchor_every == "auto":
            server = replace(
                server, vectors=server.vectors | {"pace": self._next_pace(plan, server, t)}
            )
        if self.gradient_at == "xbar" or present == plan.n:
            return server, learnt
        points = _added([state["x"].sum(0) for state in states], torch.zeros_like(server.xbar))
        moved = ranks.sums(points)[0] - present * server.xbar
        return with_mean(server, mean_of(server) - moved / plan.n), learnt

    def _next_pace(self, plan: Plan, server: Server, t: int) -> Tensor:
        """Return the round of the next anchor, the rounds until then, and the gap of now by the
        mean of all anchors.
        """
        c = server.vectors["c"]
        mean = c if "rest" not in server.vectors else c.to(server.vectors["rest"].dtype)
        following, wait, before = server.vectors["pace"].tolist()
        expected = before * (max(following - wait, 1) / t) ** PROGRESS
        gap = plan.n * float(mean.double() @ server.xbar.double() - plan.lmo(mean, t).dot(mean))
        wait = min(2 * wait, LONGEST_WAIT) if gap < expected else max(wait // 2, SHORTEST_WAIT)
        return server.vectors["pace"].new_tensor([t + wait, wait, gap])

    def take_up(self, state: State, xbar: Tensor, sent: Contributed) -> State:
        state = state | {"c": sent.vector, "anchored": torch.ones_like(state["anchored"])}
        if self.gradient_at == "own":
            state["x"] = xbar.expand_as(state["x"]).clone()
            if (
                "past" in state
                # what was remembered of the last step says nothing of the curvature on the way to xbar
            ):
                state["past"] = torch.zeros_like(state["past"])
        return state

    # --- every round ---

    def looks_at(self, state: State, message: Message) -> Tensor:
        return state["x"] if self.gradient_at == "own" else message.xbar.expand_as(state["x"])

    def direction(
        self, plan: Plan, state: State, message: Message, a: Tensor, rates: Rates
    ) -> tuple[State, Tensor]:
        if "c" in message.vectors:
            # A client without an anchor has nothing to take off, and adds nothing.
            g = (message.vectors["c"].double() - state["c"]).mul_(state["anchored"]).add_(a)
        else:
            g = a.to(torch.float64, copy=True)
        if self.beta:
            state, d = running_average(state, g.to(a.dtype), 1 - self.beta)
            g = d.to(torch.float64, copy=True)
        if plan.lam_0:
            g += rates.lam * (state["x"] - message.xbar)
        return state, g

    def regroup(self, server: Server, clients: State, weights: Tensor | None = None) -> Server:
        server = super().regroup(server, clients, weights)
        if "c" not in server.vectors:
            return server
        anchored = float(clients["anchored"].sum())
        if not anchored:
            left = {name: vector for name, vector in server.vectors.items() if name not in _ANCHORS}
            return replace(server, vectors=left)
        return _with_anchors(server, exact_sum(clients["c"].double()), anchored)


_ANCHORS = ("c", "total", "lost", "anchored")
"""What a server holds of anchors: their mean as it goes down, their sum, what its rounding lost,
and their number.
"""


def _anchors_of(server: Server) -> tuple[Tensor, float]:
    """Return the sum of all clients' last anchors and what its rounding lost, (2, p), and how many
    there are.
    """
    if "c" not in server.vectors:
        return torch.stack([torch.zeros_like(server.xbar)] * 2), 0.0
    return torch.stack([server.vectors["total"], server.vectors["lost"]]), float(
        server.vectors["anchored"]
    )


def _with_anchors(server: Server, total: Tensor, anchored: float) -> Server:
    """Return the server's memory when so many clients have anchors, which add up to ``total`` (2,
    p) of `exact_sum`.

    Changes of single clients are added to that sum for thousands of rounds: without what each
    rounding lost, it would become another one than the sum of what the clients hold.
    """
    c = sent_down(server, total.sum(0) / anchored)
    counted = torch.tensor([anchored], dtype=torch.float64, device=total.device)
    held = dict(zip(_ANCHORS, (c, total[0], total[1], counted), strict=True))
    return replace(server, vectors=server.vectors | held)


def _changes(before: Tensor, after: Tensor) -> Tensor:
    """Return what clients add to the sum of all anchors, (2 m, p): their new ones, less their old
    ones, (m, p) each.
    """
    return torch.cat([after.double(), -before.double()])


def _added(vectors: list[Tensor], zeros: Tensor) -> Tensor:
    """The sum of vectors (p,), of which a rank may have none."""
    return torch.stack(vectors).sum(0) if vectors else zeros
