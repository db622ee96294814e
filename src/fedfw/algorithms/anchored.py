"""Anchored FedFW: now and then every client is given its dual at once.

In a round with an anchor there is one exchange more. Client i sends c_i = w_i grad f_i(xbar), and
both ends remember it. With C the mean of the last anchors of all clients, present or not, the
direction of every round, with atoms only, is

    g_i = w_i grad f_i(xbar) - c_i + C + lam_t (x_i - xbar).

With all clients present C is grad F(xbar) / n, and C - c_i is the dual y_i of the paper's FedFW+.
With absentees anchors are of different ages: each client takes off its own, so that the directions
of all clients add up to the gradient of F at xbar. A client without an anchor uses its gradient as
it is, and C is the mean over the clients that have one. With momentum the corrected direction is
averaged; the penalty, which changes with every round, is added to the average.

At xbar all directions add up to grad F(xbar), because the penalty's parts add up to zero. With
``gradient_at="own"`` gradients are taken at x_i, and anchors also set x_i <- xbar. In both cases
F(xbar^t) - F* <= (2 + 24 (m-1)) L' D^2 / t for convex losses without penalty, with all clients
present and an anchor every m rounds, L' = n max w_i L_i.

``anchor_every="auto"`` goes by the gap at anchors. If from round s to round t it fell by more than
sqrt(s / t), twice as many rounds pass until the next anchor; else half as many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedfw.algorithms.anchor import FIRST_WAIT, Anchor
from fedfw.algorithms.averaging import Averaging, MomentumOption, choose_momentum, momentum_average
from fedfw.algorithms.contract import (
    Client,
    Exchange,
    Message,
    Oracles,
    Payload,
    Present,
    Reveals,
    Run,
    State,
)
from fedfw.algorithms.penalised import PenalisedFW
from fedfw.algorithms.penalty import choose_penalty
from fedfw.algorithms.rules import StepRule
from fedfw.algorithms.setting import Setting
from fedfw.algorithms.step_sizes import frank_wolfe_steps
from fedfw.atoms import Atom
from fedfw.atoms.mixture import mix
from fedfw.compression import CompressOption
from fedfw.options import limits, option

AnchorEvery = Annotated[
    Annotated[int, limits(ge=1)] | Literal["auto"],
    option(
        "rounds between anchors, which share sums of gradients; auto goes by the gap at anchors",
        expected='a whole number of at least 1, or "auto"',
    ),
]
GradientAt = Annotated[
    Literal["xbar", "own"],
    option("where clients take their gradients: at the model, or at points of their own"),
]


@dataclass(frozen=True, kw_only=True)
class FedFWAnchored(PenalisedFW):
    """Anchored FedFW: now and then every client is given its dual at once, from one sum of
    gradients.

    It is the method for sparse atoms (l1 and its kin) when clients differ and the server may see
    sums of gradients.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D.
    penalty : float or str
        lam_0; see `fedfw.algorithms.penalty`. With 0 the anchors alone hold the clients together.
    schedule : str, Schedule, callable or None
        Step sizes; see `fedfw.schedules`.
    momentum : float or "auto"
        Weight of past corrected directions; "auto" is 0.9, or 0 for convex losses with absentees.
    anchor_every : int or "auto"
        Rounds from one anchor to the next; "auto" goes by the gap at anchors.
    gradient_at : {"xbar", "own"}
        Where clients take their gradients: at the model, or at points of their own, to which
        anchors hand the model.
    compress : str
        What is done to the gradients that clients send at anchors, such as "bits:8"; see
        `fedfw.compression`. Such a sum is not the gradient of F, so anchors prove nothing then.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> algorithm = fedfw.FedFWAnchored(fedfw.Box(-1.0, 1.0), anchor_every=5)
    >>> run = fedfw.simulate(problem, algorithm, rounds=20)
    >>> float(run.x), run.dense_sums
    (1.0, 4)
    """

    momentum: MomentumOption = "auto"
    anchor_every: AnchorEvery = "auto"
    gradient_at: GradientAt = "xbar"
    compress: CompressOption = "none"

    name: ClassVar[str] = "fedfw-anchored"
    title: ClassVar[str] = "FedFW-anchored"
    revision: ClassVar[int] = 2
    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = "at each anchor the sum of the gradients of those present"
    has_curvature_steps: ClassVar[bool] = True
    downloads: ClassVar[tuple[str, ...]] = ("c",)
    means: ClassVar[Mapping[str, str]] = {"xbar": "x", "c": "c", "anchored": "anchored"}

    @classmethod
    def grid(cls, setting: Setting) -> Mapping[str, Sequence[Any]]:
        """Return the values that `fedfw.tune` tries, by option."""
        return {
            "anchor_every": ("auto", 5),
            "schedule": ("convex", "linear-decay:0.2"),
            "momentum": (0.9,),
            "penalty": ("auto:0.3", "auto", "auto:3"),
        }

    def configure(self, setting: Setting) -> tuple[Self, StepRule]:
        """Replace "auto" by numbers; return the method and the rule of its step sizes."""
        beta = choose_momentum(self.momentum, setting, anchored=True)
        # Beside anchors the default penalty is the same with and without averaged gradients.
        lam_0 = choose_penalty(self.penalty, setting, averages=True, anchored=True)
        # Two successive gradients show the curvature along a step if they are taken at its ends:
        # at a client's own points, which an anchor in every round would move to xbar in between.
        measurable = self.gradient_at == "own" and self.anchor_every != 1
        schedule, rule = frank_wolfe_steps(self.schedule, setting, lam_0, beta, measurable)
        return replace(self, momentum=beta, penalty=lam_0, schedule=schedule), rule

    @property
    def averaging(self) -> Averaging:
        return momentum_average(self.momentum)

    @property
    def all_exchanges(self) -> Sequence[Exchange]:
        return (Anchor(self.anchor_every, self.gradient_at), self)

    def exchanges(self, run: Run, server: State, t: int) -> Sequence[Exchange]:
        if self.anchor_every == "auto":
            due = t >= float(server["pace"][0])
        else:
            due = (t - 1) % self.anchor_every == 0
        return self.all_exchanges if due else (self,)

    def init_client(self, run: Run, x: Tensor) -> Client:
        shared, private = super().init_client(run, x)
        zero = torch.zeros_like(shared["x"])
        anchored = zero.new_zeros(len(x), 1)
        return Client(shared | {"c": zero, "anchored": anchored}, private)

    def init_server(self, run: Run, x: Tensor) -> State:
        server = super().init_server(run, x)
        zero = torch.zeros_like(server["xbar"])
        # The round of the next anchor, the rounds between the last two, and the last gap.
        pace = torch.tensor([1.0, FIRST_WAIT / 2, 1e300], dtype=torch.float64)
        return server | {"c": zero, "anchored": zero.new_zeros(1), "pace": pace}

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        if not bool(server["anchored"] > 0):
            return server, {}
        return server, {"c": server["c"] / server["anchored"]}

    def correction(self, shared: State, msg: Message) -> Tensor | float:
        """Return C - c_i of the clients that have an anchor, (m, p), and 0 for the others."""
        if "c" not in msg.vectors:
            return 0.0
        return (msg.vectors["c"].double() - shared["c"]) * shared["anchored"]

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        """Take local Frank-Wolfe steps from x_i, and send the mixture of the atoms. Directions are
        w_i grad f_i - c_i + C + lam (x_i - xbar), with c_i the client's gradient at its last anchor
        and C the mean of these over the clients; the part before the penalty is averaged over time.
        """
        shared, private = client
        point = shared["x"]  # where the gradient is taken
        if self.gradient_at == "xbar":
            point = msg.xbar.expand_as(point)
        atoms: list[Atom] = []
        for k, rates in enumerate(msg.rates):
            if k:  # the last local step is taken from xbar as well, where gradients begin there
                eta = msg.rates[k - 1].eta
                shared = shared | {"x": atoms[-1].stepped(shared["x"], eta)}
                point = atoms[-1].stepped(point, eta) if self.gradient_at == "xbar" else shared["x"]
            a = oracles.gradient(point)
            g = a + self.correction(shared, msg)
            if self.averages:
                private, g = self.averaging.update(private, g.to(a.dtype), rates)
            g = g + rates.lam * (shared["x"] - msg.xbar)
            atoms.append(oracles.lmo(g.to(a.dtype)))
        return private, {"atom": mix(atoms, msg.shares)}

    def public_direction(self, run: Run, shared: State, msg: Message) -> Tensor:
        return self.correction(shared, msg) + msg.rates[0].lam * (shared["x"] - msg.xbar)
