"""The exchange of an anchor: one sum of the gradients w_i grad f_i(xbar), before a round's step.

Client i sends c_i, and both ends remember it. The server keeps the mean of the last c_i of all
clients; with all clients present it is grad F(xbar) / n. With ``anchor_every="auto"`` the server
also chooses the next round with an anchor, by the gap at this one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Affine,
    Client,
    Exchange,
    Kind,
    Message,
    Oracles,
    Payload,
    Run,
    State,
    Sums,
)
from fedfw.algorithms.optin import GathersGradients

FIRST_WAIT = 5
SHORTEST_WAIT = 2
LONGEST_WAIT = 40
"""Rounds between anchors with anchor_every="auto"."""
PROGRESS = 0.5
"""Gaps at anchors are to fall like t ** -PROGRESS; else the next anchor comes sooner."""


@dataclass(frozen=True)
class Anchor(Exchange, GathersGradients):
    """The exchange of an anchor: one sum of gradients at xbar."""

    anchor_every: int | str
    gradient_at: str

    label: ClassVar[str] = "sum"
    uploads: ClassVar[Mapping[str, Kind]] = {"a": Kind.VALUE}
    gradient_upload: ClassVar[str] = "a"

    @property
    def rounds_between(self) -> float:
        if isinstance(self.anchor_every, str):
            return FIRST_WAIT
        return self.anchor_every

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        points = msg.xbar.expand(oracles.m, -1)
        return client.private, {"a": oracles.gradient(points, full=True)}

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        """Take the gradient a as the anchor c_i; clients with gradients at their own points go back
        to xbar.
        """
        anchored = torch.ones_like(shared["anchored"])
        after = shared | {"c": payload["a"].double(), "anchored": anchored}
        if self.gradient_at == "own":
            after["x"] = msg.xbar.expand_as(shared["x"]).clone()
        return after

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        """Update "c", the sum of all anchors c_i over n, and "anchored", the share of clients that
        have one.
        """
        after = dict(server)
        if sums.complete:
            after["c"] = sums.total("a").double() / run.n
            after["anchored"] = torch.ones_like(server["anchored"])
        else:
            # Absent clients keep their anchors; those of the participants replace the earlier ones.
            after["c"] = server["c"] + (sums.total("a").double() - sums.shared("c")) / run.n
            first_anchors = sums.count - sums.shared("anchored")
            after["anchored"] = server["anchored"] + first_anchors / run.n
        if self.anchor_every == "auto":
            after["pace"] = self._next_pace(run, after, msg)
        if self.gradient_at == "own":
            after["xbar"] = self._mean_of_points(run, server, sums, msg)
        return after

    def _mean_of_points(self, run: Run, server: State, sums: Sums, msg: Message) -> Tensor:
        """Return the mean of all x_i once the participants have set theirs to xbar."""
        if sums.complete:
            return msg.xbar
        return server["xbar"] - (sums.shared("x") - sums.count * msg.xbar) / run.n

    def _next_pace(self, run: Run, server: State, msg: Message) -> Tensor:
        """Return the round of the next anchor, the rounds until then, and the Frank-Wolfe gap at
        this one, (3,): a gap below the expected one doubles the wait, any other halves it.
        """
        mean = (server["c"] / server["anchored"]).to(run.dtype)  # of the anchors: grad F / n
        due, wait, last_gap = server["pace"].tolist()
        last_round = max(due - wait, 1)  # before the first anchor due - wait is below 1
        expected = last_gap * (last_round / msg.t) ** PROGRESS
        atom = run.constraint.lmo(mean, tol=msg.oracle_tol)
        # <grad F, xbar> - min over s in D of <grad F, s>
        gap = run.n * float(mean.double() @ server["xbar"].double() - atom.dot(mean))
        wait = min(2 * wait, LONGEST_WAIT) if gap < expected else max(wait // 2, SHORTEST_WAIT)
        return server["pace"].new_tensor([msg.t + wait, wait, gap])
