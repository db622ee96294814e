"""A round under way, as the server sees it: its phases, its exchanges, and what was sent."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfw.algorithms.contract import Exchange, Message, State
from fedfw.algorithms.rules import Rates
from fedfw.ranks import Ranks
from fedfw.rounds.channels import pack
from fedfw.rounds.server_steps import ServerState
from fedfw.rounds.sums import Upload
from fedfw.rounds.wire import DIGEST_NBYTES, NUMBER_NBYTES, Versions

Rows = slice | npt.NDArray[np.int64]
"""Rows of the memory on the host; slice(None) for all."""


@dataclass
class Traffic:
    """The bytes that a round sent: the payload and the checks, both ways."""

    bytes_up: int = 0
    bytes_down: int = 0
    evidence_up: int = 0
    evidence_down: int = 0


@dataclass(frozen=True)
class Gathered:
    """The results of a sum of gradients at xbar: F(xbar), and its gradient (p,) if all clients sent
    theirs exactly.
    """

    loss: float
    gradient: Tensor | None


@dataclass
class Round:
    """A round under way.

    Parameters
    ----------
    t : int
        Its number.
    groups : list of Tensor
        The clients that take part, as rows (m,) of the memory; those of one group use the same set.
    rows_on_host : slice or array
        The same clients on the host, in the order of the groups; those of all ranks.
    exchanges : tuple of Exchange
        What the round consists of.
    """

    t: int
    groups: list[Tensor]
    rows_on_host: Rows
    exchanges: tuple[Exchange, ...]
    together: bool = False
    """All clients of all ranks take part, as one group."""
    is_over: bool = False
    """True if no exchange is left."""
    index: int = 0
    """Which exchange is the present one."""
    states: list[State] = field(default_factory=list)
    """The participants' states before the present exchange, at the memory's columns."""
    bases: Versions = field(default_factory=lambda: np.zeros(0, np.int64))
    """The version of the message that each participant holds."""
    before: ServerState = field(init=False, repr=False)
    """The server's state before the present message was made; set by `Coordinator.announce`."""
    after: ServerState = field(init=False, repr=False)
    """The server's state that the message announces."""
    message: Message = field(init=False, repr=False)
    version: int = 0
    """The version of the present message."""
    uploads: list[Upload] = field(default_factory=list)
    rates: Rates | None = None
    """Those of the first local step."""
    gathered: Gathered | None = None
    anchor_gap: float | None = None
    """The Frank-Wolfe gap at xbar before the step, where a gathered sum gave the gradient of F."""
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def exchange(self) -> Exchange:
        """Return the present exchange."""
        return self.exchanges[self.index]

    @property
    def count(self) -> int:
        """Return how many clients of all ranks take part."""
        return len(self.bases)

    @property
    def who(self) -> Tensor:
        """Return all clients that take part, (m,), group by group."""
        if not self.groups:
            return torch.zeros(0, dtype=torch.int64)
        return self.groups[0] if len(self.groups) == 1 else torch.cat(self.groups)

    def arrive(self, upload: Upload, with_loss: bool = False) -> None:
        """Take in what clients send; ``with_loss`` says whether each also reports its loss."""
        self.uploads.append(upload)
        count = upload.who.shape[0]
        scalars = int(with_loss) + int(upload.evidence is not None)
        self.traffic.bytes_up += pack(upload.sent).nbytes
        self.traffic.evidence_up += count * (DIGEST_NBYTES + scalars * NUMBER_NBYTES)

    def sum_over(self, ranks: Ranks, before: Traffic) -> None:
        """Let what was sent up since ``before`` be what the clients of all ranks sent."""
        own_payload = self.traffic.bytes_up - before.bytes_up
        own_evidence = self.traffic.evidence_up - before.evidence_up
        sums = ranks.numbers(own_payload, own_evidence)
        self.traffic.bytes_up = before.bytes_up + sum(int(row[0]) for row in sums)
        self.traffic.evidence_up = before.evidence_up + sum(int(row[1]) for row in sums)
