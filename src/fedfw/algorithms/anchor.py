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
        """Update c, the mean of the anchors, and the share of clients that have one."""
        after = dict(server)
        if sums.complete:
            after["c"] = sums.total("a").double() / run.n
            after["anchored"] = torch.ones_like(server["anchored"])
        else:
            new = sums.count - sums.shared("anchored")
            after["c"] = server["c"] + (sums.total("a").double() - sums.shared("c")) / run.n
            after["anchored"] = server["anchored"] + new / run.n
        if self.anchor_every == "auto":
            after["pace"] = self._next(run, after, msg)
        if self.gradient_at == "own":
            after["xbar"] = self._mean_of_points(run, server, sums, msg)
        return after

    def _mean_of_points(self, run: Run, server: State, sums: Sums, msg: Message) -> Tensor:
        """Return the mean of all x_i once the participants have set theirs to xbar."""
        if sums.complete:
            return msg.xbar
        return server["xbar"] - (sums.shared("x") - sums.count * msg.xbar) / run.n

    def _next(self, run: Run, server: State, msg: Message) -> Tensor:
        """Return the round of the next anchor, the rounds until then, and the gap."""
        mean = (server["c"] / server["anchored"]).to(run.dtype)
        following, wait, before = server["pace"].tolist()
        expected = before * (max(following - wait, 1) / msg.t) ** PROGRESS
        atom = run.constraint.lmo(mean, tol=msg.oracle_tol)
        gap = run.n * float(mean.double() @ server["xbar"].double() - atom.dot(mean))
        wait = min(2 * wait, LONGEST_WAIT) if gap < expected else max(wait // 2, SHORTEST_WAIT)
        return server["pace"].new_tensor([msg.t + wait, wait, gap])
