"""The steps of one round: every client's, then the server's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedfw.algorithms.base import Algorithm, Gradient, Lmo, Message, Plan, Server, State, Upload
from fedfw.atoms import Dense
from fedfw.checks import holds
from fedfw.errors import NonFiniteError
from fedfw.simulation.ledger import support


@dataclass(frozen=True)
class Party:
    """Clients ``who`` (m,) that use the same set: what they remember, and what they ask for gradients and atoms."""

    who: Tensor
    state: State
    gradient: Gradient
    lmo: Lmo


@dataclass(frozen=True)
class Taken:
    """What a round's steps gave.

    ``marks``, (p,) of bool each, say which coordinates of xbar changed and, where everyone sent a sparse atom, which
    of their sum are not zero.
    """

    server: Server
    states: list[State]
    uploads: list[Upload]
    marks: tuple[Tensor, ...]


def take_steps(algorithm: Algorithm, plan: Plan, server: Server, message: Message, parties: Sequence[Party]) -> Taken:
    """One round of all parties."""
    states, uploads = [], []
    for party in parties:
        before = party.state["x"]
        state, atoms, evidence = algorithm.client_step(plan, party.state, message, party.gradient, party.lmo)
        if isinstance(atoms, Dense):
            _refuse_non_finite(atoms, party.who, message.t)
        states.append(state)
        uploads.append(Upload(party.who, atoms, before, evidence))
    after = algorithm.server_step(plan, server, uploads, message.t)
    everyone = sum(len(party.who) for party in parties) == plan.n
    where = support([upload.atoms for upload in uploads], after.xbar) if everyone else None
    changed = server.xbar != after.xbar
    return Taken(after, states, uploads, (changed,) if where is None else (changed, where))


def _refuse_non_finite(sent: Dense, who: Tensor, t: int) -> None:
    """Dense vectors pass no oracle that would look at them."""
    fine = sent.values.sum(1).isfinite()
    if not holds(fine):
        clients = who[~fine].tolist()
        raise NonFiniteError(
            f"round {t}: NaN or infinity in what client {clients[:10]} sends: a smaller step may help", clients
        )
